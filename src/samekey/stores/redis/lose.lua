-- durable
-- event: lose
-- The holder cannot tell what happened.
local record = held(p.attempt, {from:lose})
if not record then
    return {}
end
change(KEYS[FIRST_RECORD], record, noted_with(record, {
    attempt = noted_by(record), state = {to:lose}, locked_until = false, error_code = p.error_code, reconcile_after = clock,
    provider_id = p.provider_id,
}))
return {{clock, number(record.expires_at)}}
