-- durable
-- event: complete
-- The holder's answer. Nothing happens if anybody else has taken the record, or if it says no and a provider's yes
-- waits (see hold), unless the handler knew of each that waits (p.heeded).
local record = held(p.attempt, {from:complete})
if not record or (p.happened ~= 1 and not set_aside(record, p.heeded)) then
    return {}
end
change(KEYS[FIRST_RECORD], record, noted_with(record, {
    state = {to:complete}, answer_version = p.answer_version, answer_status = p.answer_status or false,
    answer_headers = p.answer_headers or false, answer_body = p.answer_body or false,
    completed_at = clock, locked_until = false, expires_at = expiry(record),
    error_code = false, reconcile_after = false, provider_id = p.provider_id,
}))
return {{clock, number(record.expires_at)}}
