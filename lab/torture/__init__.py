"""Real processes under load and faults, judged from outside. ``python -m lab.torture --help`` says how."""
