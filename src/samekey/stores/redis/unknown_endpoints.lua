-- Where outcomes are unknown in one partition, and how many.
local counts, rows = {}, {}
for _, base in ipairs(redis.call('ZRANGE', indexes.unknown, 0, 999)) do
    local endpoint = redis.call('HGET', home .. base, 'endpoint')
    if endpoint then
        counts[endpoint] = (counts[endpoint] or 0) + 1
    end
end
for endpoint, count in pairs(counts) do
    rows[#rows + 1] = {'t' .. endpoint, count}
end
return rows
