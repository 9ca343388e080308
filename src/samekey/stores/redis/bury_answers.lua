-- durable
-- The other way: keeps the fact as a tombstone for a while and drops the answer.
local rows = {}
for i = FIRST_RECORD, #KEYS do
    local record = load(KEYS[i])
    if not record then
        redis.call('ZREM', indexes.settled, base_of(KEYS[i]))
    elseif {from:expire}[record.state] and number(record.expires_at) <= clock then
        change(KEYS[i], record, {
            state = {to:expire}, answer_version = false, answer_status = false, answer_headers = false,
            answer_body = false, expires_at = clock + p.keep_ms,
        })
        rows[#rows + 1] = {'t' .. (record.id or '')}
    end
end
return rows
