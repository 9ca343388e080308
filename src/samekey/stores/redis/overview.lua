-- What a doctor looks at, of one partition; others add it up.
local function earliest(index)
    local found = redis.call('ZRANGE', indexes[index], 0, 0, 'WITHSCORES')
    return found[2] and number(found[2]) or false
end
local oldest = false
for _, base in ipairs(redis.call('ZRANGE', indexes.unknown, 0, 999)) do
    local ran = tonumber(redis.call('HGET', home .. base, 'last_run_at') or '')
    if ran and (not oldest or ran < oldest) then
        oldest = ran
    end
end
local dead, pending, oldest_pending = 0, 0, false
for _, base in ipairs(redis.call('ZRANGE', indexes.dead, 0, -1)) do
    local state = redis.call('HGET', home .. base, 'state')
    if state == {state:dead_letter} then
        dead = dead + 1
    elseif state == {state:pending} then
        pending = pending + 1
    end
end
local records = 0
for _, set in pairs(indexes) do
    records = records + redis.call('ZCARD', set)
end
-- Entries below this are of records that have gone by themselves.
local gone = '(' .. text(clock - MARGIN)
records = records - redis.call('ZCOUNT', indexes.settled, '-inf', text(clock - MARGIN))
local first = redis.call('ZRANGE', indexes.settled, gone, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
return {{
    clock, records, redis.call('ZCARD', indexes.unknown), oldest, dead,
    redis.call('ZCOUNT', indexes.leases, '-inf', text(clock)), earliest('leases'),
    redis.call('ZCOUNT', indexes.settled, gone, text(clock)), first[2] and number(first[2]) or false,
    earliest('unknown'), pending,
}}
