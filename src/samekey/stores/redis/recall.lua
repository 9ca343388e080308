-- durable
-- event: recall
-- The provider, asked before a key that had expired runs again, knows its answer: the operation is done, as it was.
local record = load(KEYS[FIRST_RECORD])
if not record or record.id ~= p.operation_id or record.attempt ~= p.seen or not over(record) then
    return {}
end
change(KEYS[FIRST_RECORD], record, {
    state = {to:recall}, attempt = p.attempt, answer_version = p.answer_version,
    answer_status = p.answer_status or false, answer_headers = p.answer_headers or false,
    answer_body = p.answer_body or false, completed_at = clock, locked_until = false, expires_at = expiry(record),
    error_code = false, reconcile_after = false, provider_id = p.provider_id,
})
return {row({clock}, record)}
