-- durable
-- event: expire, reap
-- Deletes or buries settled records past retention, each as it says itself. What is in flight or unknown is never
-- touched. After "gone" the tombstone stays for good: a key that was answered 410 never runs again.
local rows = {}
for i = FIRST_RECORD, #KEYS do
    local record = load(KEYS[i])
    if not record then
        -- It went by itself; only its place in the index was left.
        redis.call('ZREM', indexes.settled, base_of(KEYS[i]))
        rows[#rows + 1] = {'t'}
    elseif {from:reap}[record.state] and number(record.expires_at) <= clock then
        local buried = {from:expire}[record.state] and (record.after_expiry ~= 'new' or p.soft == 1)
        if buried then
            change(KEYS[i], record, {
                state = {to:expire}, answer_version = false, answer_status = false, answer_headers = false,
                answer_body = false,
                expires_at = record.after_expiry == 'gone' and {table:for_ever} or clock + p.keep_ms,
            })
        elseif record.after_expiry ~= 'gone' then
            remove(KEYS[i], record)
        end
        rows[#rows + 1] = {'t' .. (record.id or '')}
    end
end
return rows
