-- durable
-- event: found_executed
-- It happened (or was declined): this is its answer. The last error code stays: it tells a record that was found
-- out from one that its holder completed. Against a refusal each yes that waits must have been set aside (p.despite).
local record = operation({from:found_executed})
if not record or (p.despite and not set_aside(record, p.despite)) then
    return {}
end
change(KEYS[FIRST_RECORD], record, {
    state = {to:found_executed}, attempt = nobodys(record), answer_version = p.answer_version, answer_status = p.answer_status or false,
    answer_headers = p.answer_headers or false, answer_body = p.answer_body or false,
    completed_at = clock, locked_until = false, expires_at = expiry(record), reconcile_after = false,
    reconcile_tries = false, provider_id = p.provider_id, source = p.source,
})
return {row({clock}, record)}
