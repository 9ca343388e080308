-- One page of what is due in one partition: the first outcomes of none of these endpoints, and whether there is more.
local full = {}
for _, endpoint in ipairs(cjson.decode(p.endpoints)) do
    full[endpoint] = true
end
local rows, read = {}, redis.call(
    'ZRANGE', indexes.unknown, '-inf', text(clock), 'BYSCORE', 'LIMIT', p.offset, p.page, 'WITHSCORES')
for i = 1, #read, 2 do
    local endpoint = redis.call('HGET', home .. read[i], 'endpoint')
    if not (endpoint and full[endpoint]) then
        rows[#rows + 1] = {0, number(read[i + 1]), 't' .. read[i]}
        if #rows == p.batch then
            break
        end
    end
end
rows[#rows + 1] = {1, #read == 2 * p.page and 1 or 0, 't'}
return rows
