-- durable
-- event: retry
-- One retry wins the right to run a failed operation again: the attempt it saw must still be there.
local record = held(p.seen, {from:retry})
if not record then
    return {}
end
change(KEYS[FIRST_RECORD], record, {
    state = {to:retry}, mode = p.mode, attempt = p.attempt, attempts = number(record.attempts) + 1,
    locked_until = clock + p.lease_ms, last_run_at = clock, expires_at = clock + number(record.ttl_ms),
    error_code = false, provider_id = false, reconcile_tries = false, downstream = record.downstream or p.downstream,
})
return {row({clock}, record)}
