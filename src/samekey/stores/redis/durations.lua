-- How long recent operations of one partition took, in milliseconds. What somebody else found out later says
-- nothing about a run, and has an error code.
local rows = {}
for _, base in ipairs(redis.call('ZRANGE', indexes.settled, 0, p.limit - 1, 'REV')) do
    local found = redis.call('HMGET', home .. base, 'state', 'completed_at', 'last_run_at', 'error_code')
    if found[1] == {state:completed} and found[2] and found[3] and not found[4] then
        rows[#rows + 1] = {number(found[2]) - number(found[3])}
    end
end
return rows
