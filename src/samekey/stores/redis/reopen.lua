-- durable
-- event: reopen
-- A failure that was remembered as the answer may be tried again, once; not while a provider says that it happened.
local record = operation({from:reopen})
if not record or record.disputed or number(record.expires_at) <= clock
    or not record.answer_status or number(record.answer_status) < 400 then
    return {}
end
change(KEYS[FIRST_RECORD], record, {
    state = {to:reopen}, attempt = nobodys(record), answer_version = false, answer_status = false,
    answer_headers = false, answer_body = false, completed_at = false, error_code = 'reopened',
    expires_at = clock + number(record.ttl_ms),
})
return {row({clock}, record)}
