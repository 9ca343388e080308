-- What the last attempt that told its outcome may have sent.
local record = load(KEYS[FIRST_RECORD])
if not record or record.id ~= p.operation_id or not record.steps then
    return {}
end
local function given(value)
    return type(value) == 'string' and 't' .. value or false
end
local rows = {}
for place, one in ipairs(cjson.decode(record.steps)) do
    rows[place] = {
        't' .. one[1], 'tleased', 't' .. (place - 1), 't' .. record.sent_attempt, given(record.source),
        given(one[2]), given(one[3]), number(record.attempts), number(record.last_run_at), false, false, 0,
    }
end
return rows
