-- In one partition; all of them are asked. An entry may be older than what it points to, so that is looked at.
local rows = {}
local noted = pointer(p.tenant, p.provider_id)
for _, base in ipairs(redis.call('SMEMBERS', noted)) do
    local record = load(home .. base)
    if record and record.provider_id == p.provider_id and record.tenant == p.tenant then
        if not p.source or record.source == p.source then
            local steps = record.steps and run_of(record.sent_attempt) == run_of(record.attempt) and cjson.decode(record.steps) or {}
            local key = #steps == 1 and type(steps[1][2]) == 'string' and 't' .. steps[1][2]
            rows[#rows + 1] = row({key or false, clock}, record)
        end
    end
end
return rows
