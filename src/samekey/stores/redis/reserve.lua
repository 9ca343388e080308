-- durable
-- event: claim
-- Insert or nothing. Gives the new record ("mine"), or the one that is there.
local there = mine()
if there then
    return {row({clock, 0}, there)}
end
local record = {}
change(KEYS[FIRST_RECORD], record, {
    id = p.id, life = 1, scope = p.scope, key = p.key, tenant = p.tenant, endpoint = p.endpoint,
    fingerprint = p.fingerprint, fingerprint_version = p.fingerprint_version,
    state = {to:claim}, mode = p.mode, attempt = p.attempt, attempts = 1,
    locked_until = clock + p.lease_ms, downstream = p.downstream,
    ttl_ms = p.ttl_ms, ttl_from = p.ttl_from, after_expiry = p.after_expiry,
    created_at = clock, last_run_at = clock, expires_at = clock + p.ttl_ms,
})
return {row({clock, 1}, record)}
