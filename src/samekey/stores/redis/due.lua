-- What stands first in one index of one partition, up to now: its score and name. All partitions are asked.
local found = redis.call(
    'ZRANGE', indexes[p.index], '-inf', text(clock), 'BYSCORE', 'LIMIT', 0, p.batch, 'WITHSCORES')
local rows = {}
for i = 1, #found, 2 do
    rows[#rows + 1] = {number(found[i + 1]), 't' .. found[i]}
end
return rows
