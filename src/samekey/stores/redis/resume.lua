-- durable
-- event: resume
-- Takes over phased work whose lease ran out, under a new attempt.
local record = held(p.seen, {from:resume})
if not record or record.mode ~= {mode:phased} or number(record.locked_until) > clock then
    return {}
end
change(KEYS[FIRST_RECORD], record, {
    state = {to:resume}, attempt = p.attempt, attempts = number(record.attempts) + 1,
    locked_until = clock + p.lease_ms, last_run_at = clock,
})
return {row({clock}, record)}
