-- The live leases of a process in one partition; gives back the attempts that are still theirs.
local rows = {}
for i, attempt in ipairs(p.attempts) do
    local name = KEYS[FIRST_RECORD + i - 1]
    local found = redis.call('HMGET', name, 'attempt', 'state')
    if found[1] == attempt and {from:lease_end}[found[2]] then
        local ends = text(clock + p.durations[i])
        redis.call('HSET', name, 'locked_until', ends)
        redis.call('ZADD', indexes.leases, ends, base_of(name))
        rows[#rows + 1] = {'t' .. attempt}
    end
end
return rows
