-- durable
-- The holder proves that nothing happened.
local record = held(p.attempt, {from:fail})
if not record then
    return {}
end
change(KEYS[FIRST_RECORD], record, noted_with(record, {
    state = {to:fail}, locked_until = false, error_code = p.error_code, reconcile_after = false,
    expires_at = clock + number(record.ttl_ms),
}))
return {{clock, number(record.expires_at)}}
