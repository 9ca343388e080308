-- event: expire
-- Retention is over: keep the fact, drop the answer.
local record = mine()
if not record or not {from:expire}[record.state] or number(record.expires_at) > clock then
    return {}
end
change(KEYS[FIRST_RECORD], record, {
    state = {to:expire}, answer_version = false, answer_status = false, answer_headers = false,
    answer_body = false,
})
return {{clock, number(record.expires_at)}}
