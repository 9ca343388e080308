-- durable
-- event: found_not_executed
-- It never happened: one retry may run. The event that says so is kept: should it come again, it frees no other. Each
-- provider's yes that waits must have been set aside by name.
local record = operation({from:found_not_executed})
if not record or not set_aside(record, p.despite) or (record.mode == {mode:deferred} and record.state == {state:dead_letter}) then
    return {}
end
local freed_by = record.freed_by and cjson.decode(record.freed_by) or {}
if p.event then
    freed_by[#freed_by + 1] = p.event
end
change(KEYS[FIRST_RECORD], record, {
    state = {to:found_not_executed}, attempt = nobodys(record), locked_until = false, reconcile_after = false, reconcile_tries = false,
    expires_at = clock + number(record.ttl_ms), freed_by = #freed_by > 0 and cjson.encode(freed_by) or false,
    disputed = false,
})
return {row({clock}, record)}
