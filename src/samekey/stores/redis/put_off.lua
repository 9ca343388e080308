-- Unknown outcomes of some endpoints are put off, and that is no try; gives the names of the others.
local full = {}
for _, endpoint in ipairs(cjson.decode(p.endpoints)) do
    full[endpoint] = true
end
local rows = {}
for i = FIRST_RECORD, #KEYS do
    local record = load(KEYS[i])
    local due = record and record.state == {state:unknown} and number(record.reconcile_after) <= clock
    if due and full[record.endpoint] then
        change(KEYS[i], record, {reconcile_after = clock + p.pause_ms})
    else
        rows[#rows + 1] = {'t' .. base_of(KEYS[i])}
    end
end
return rows
