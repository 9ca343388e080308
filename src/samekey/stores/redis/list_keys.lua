-- One page of one partition: which records fit, by name, and whether there is more. Of each index the entries with
-- the highest scores come first, which are the newest or nearly so.
local rows, more = {}, 0
for _, index in ipairs(p.indexes) do
    local set = indexes[index]
    local found = redis.call('ZRANGE', set, p.offset, p.offset + p.page - 1, 'REV')
    if #found == p.page then
        more = 1
    end
    for _, base in ipairs(found) do
        local values = redis.call('HMGET', home .. base, 'state', 'tenant', 'key', 'created_at', 'endpoint')
        if values[1] and (not p.state or values[1] == p.state) and (not p.tenant or values[2] == p.tenant)
            and (not p.key or values[3] == p.key)
            and (not p.endpoint or values[5] == p.endpoint)
            and (not p.created_after or number(values[4]) >= p.created_after)
            and (not p.created_before or number(values[4]) < p.created_before) then
            rows[#rows + 1] = {0, number(values[4]), 't' .. base}
        end
    end
end
rows[#rows + 1] = {1, more, 't'}
return rows
