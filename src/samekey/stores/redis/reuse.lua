-- durable
-- event: claim
-- A new life of a key whose retention is over, whether or not the reaper has been by. It is a new operation;
-- what the provider has made for the former one is not taken for its own.
local record = mine()
if not record or record.attempt ~= p.seen or not over(record) then
    return {}
end
local past = past_of(record)
for _, one in ipairs(made_by(record)) do
    past[#past + 1] = one[1]
end
if record.provider_id then
    past[#past + 1] = record.provider_id
end
while #past > MOST_MADE do
    table.remove(past, 1)
end
change(KEYS[FIRST_RECORD], record, {
    id = p.id, life = number(record.life) + 1, state = {to:claim}, mode = p.mode, attempt = p.attempt, attempts = 1,
    tenant = p.tenant, endpoint = p.endpoint, fingerprint = p.fingerprint,
    fingerprint_version = p.fingerprint_version,
    recovery_point = false, locked_until = clock + p.lease_ms,
    answer_version = false, answer_status = false, answer_headers = false, answer_body = false,
    error_code = false, downstream = p.downstream or false, provider_id = false,
    steps = false, made = false, past = #past > 0 and cjson.encode(past) or false,
    sent_attempt = false, source = false, freed_by = false, disputed = false,
    reconcile_after = false, reconcile_tries = false,
    ttl_ms = p.ttl_ms, ttl_from = p.ttl_from, after_expiry = p.after_expiry,
    created_at = clock, last_run_at = clock, completed_at = false, expires_at = clock + p.ttl_ms,
})
return {row({clock}, record)}
