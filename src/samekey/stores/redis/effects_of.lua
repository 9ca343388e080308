-- What the last attempt that told its outcome may have sent.
local record = load(KEYS[FIRST_RECORD])
if not record or record.id ~= p.operation_id or not record.steps then
    return {}
end
local function given(value)
    return type(value) == 'string' and 't' .. value or false
end
local former = {}
for _, one in ipairs(made_by(record)) do
    if run_of(one[2]) ~= run_of(record.attempt) then
        former[#former + 1] = one[1]
    end
end
local rows = {}
for place, one in ipairs(cjson.decode(record.steps)) do
    rows[place] = {
        't' .. one[1], 'tleased', 't' .. (place - 1), 't' .. record.sent_attempt, given(one[4]),
        given(one[2]), given(one[3]), number(record.attempts), number(record.last_run_at), false, false, 0,
        't' .. (#former > 0 and cjson.encode(former) or '[]'),
    }
end
return rows
