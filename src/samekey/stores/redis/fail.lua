-- durable
-- event: fail
-- The holder proves that nothing happened. Not against a provider's yes that waits (see hold).
local record = held(p.attempt, {from:fail})
if not record or record.disputed then
    return {}
end
change(KEYS[FIRST_RECORD], record, noted_with(record, {
    state = {to:fail}, locked_until = false, error_code = p.error_code, reconcile_after = false,
    expires_at = clock + number(record.ttl_ms),
}))
return {{clock, number(record.expires_at)}}
