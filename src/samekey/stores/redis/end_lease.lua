-- durable
-- event: lease_end, dispute
-- Moves a record whose lease ran out, by its mode.
local record = held(p.seen, {from:lease_end})
if not record or record.mode == {mode:phased} or number(record.locked_until) > clock then
    return {}
end
local becomes = record.disputed and {to:dispute} or {table:lease_end}[record.mode]
change(KEYS[FIRST_RECORD], record, {
    state = becomes, locked_until = false, error_code = 'lease_ended',
    expires_at = clock + number(record.ttl_ms),
    reconcile_after = becomes == {state:unknown} and clock or false,
})
return {row({clock}, record)}
