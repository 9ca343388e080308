"""``make demo``: the reference service, its worker and its provider; asked, doubted, killed and asked again.

``stage`` starts and ends the processes, ``tour`` is what steps are made of, ``calm`` and ``broken`` are the
steps, ``client`` sends the requests, ``show`` prints, ``invitation`` is what to try by hand, and ``held`` is
the service with one place at which the tour can stop it.
"""
