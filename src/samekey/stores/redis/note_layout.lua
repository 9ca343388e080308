-- How the keys are laid out, written down by whoever comes first. Gives what stands there.
redis.call('SET', home .. 'layout', p.layout, 'NX')
return {{clock, 't' .. redis.call('GET', home .. 'layout')}}
