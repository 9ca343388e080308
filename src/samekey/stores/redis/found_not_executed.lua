-- durable
-- It never happened: one retry may run.
local record = operation({from:found_not_executed})
if not record or (record.mode == {mode:deferred} and record.state == {state:dead_letter}) then
    return {}
end
change(KEYS[FIRST_RECORD], record, {
    state = {to:found_not_executed}, locked_until = false, reconcile_after = false, reconcile_tries = false,
    expires_at = clock + number(record.ttl_ms),
})
return {row({clock}, record)}
