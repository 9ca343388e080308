-- What a sweep would move in one partition, by mode.
local counts, rows = {}, {}
for _, base in ipairs(redis.call('ZRANGE', indexes.leases, '-inf', text(clock), 'BYSCORE')) do
    local found = redis.call('HMGET', home .. base, 'state', 'mode')
    if found[1] and {from:lease_end}[found[1]] and found[2] and found[2] ~= {mode:phased} then
        counts[found[2]] = (counts[found[2]] or 0) + 1
    end
end
for mode, count in pairs(counts) do
    rows[#rows + 1] = {'t' .. mode, count}
end
return rows
