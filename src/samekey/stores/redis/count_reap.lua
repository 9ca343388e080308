-- What a reaper would find in one partition, by state.
local counts, rows = {}, {}
for _, base in ipairs(redis.call('ZRANGE', indexes.settled, '-inf', text(clock), 'BYSCORE')) do
    local state = redis.call('HGET', home .. base, 'state')
    if state and {from:reap}[state] then
        counts[state] = (counts[state] or 0) + 1
    end
end
for state, count in pairs(counts) do
    rows[#rows + 1] = {'t' .. state, count}
end
return rows
