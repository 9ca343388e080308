-- Whose keys these are, written down by whoever comes first. Gives what stands there.
redis.call('SET', home .. 'identity', p.identity, 'NX')
return {{clock, 't' .. redis.call('GET', home .. 'identity')}}
