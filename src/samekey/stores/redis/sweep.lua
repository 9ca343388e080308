-- durable
-- event: lease_end, dispute
-- Moves records whose lease ran out, each by its mode, before a retry has to do it. A record that cannot be read
-- stays as it is.
local rows = {}
for i = FIRST_RECORD, #KEYS do
    local record = load(KEYS[i])
    if not record then
        redis.call('ZREM', indexes.leases, base_of(KEYS[i]))
    elseif {from:lease_end}[record.state] and record.mode ~= {mode:phased}
        and tonumber(record.locked_until or '') and number(record.locked_until) <= clock then
        local becomes = record.disputed and {to:dispute} or {table:lease_end}[record.mode]
        if becomes then
            change(KEYS[i], record, {
                state = becomes, locked_until = false, error_code = 'lease_ended',
                expires_at = clock + number(record.ttl_ms),
                reconcile_after = becomes == {state:unknown} and clock or false,
            })
            rows[#rows + 1] = row({clock}, record)
        end
    end
end
return rows
