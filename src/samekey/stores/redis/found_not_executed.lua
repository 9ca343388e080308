-- durable
-- It never happened: one retry may run.
local record = operation({from:found_not_executed})
if not record or (record.mode == {mode:deferred} and record.state == {state:dead_letter}) then
    return {}
end
local kept = math.max(number(record.expires_at) - number(record.last_run_at), 0)
change(KEYS[FIRST_RECORD], record, {
    state = {to:found_not_executed}, locked_until = false, reconcile_after = false, reconcile_tries = false,
    expires_at = clock + kept,
})
return {row({clock}, record)}
