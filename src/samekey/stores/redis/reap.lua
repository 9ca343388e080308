-- Deletes settled records past retention. What is in flight or unknown is never touched.
local rows = {}
for i = FIRST_RECORD, #KEYS do
    local record = load(KEYS[i])
    if not record then
        -- It went by itself; only its place in the index was left.
        redis.call('ZREM', indexes.settled, base_of(KEYS[i]))
        rows[#rows + 1] = {'t'}
    elseif {from:reap}[record.state] and number(record.expires_at) <= clock
        and (not p.only or record.state == p.only) then
        remove(KEYS[i], record)
        rows[#rows + 1] = {'t' .. (record.id or '')}
    end
end
return rows
