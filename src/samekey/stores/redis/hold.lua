-- durable
-- event: dispute
-- The holder would free the key, but a provider says that it happened: nobody runs it before somebody has found out.
local record = held(p.attempt, {from:dispute})
if not record or not record.disputed then
    return {}
end
change(KEYS[FIRST_RECORD], record, noted_with(record, {
    attempt = noted_by(record), state = {to:dispute}, locked_until = false, error_code = p.error_code, reconcile_after = clock,
}))
return {{clock, number(record.expires_at)}}
