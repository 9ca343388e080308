-- durable
-- Drops a stored answer; the fact stays, so a retry is told that it was done and is not run.
local record = operation({[{state:completed}] = true})
if not record or not record.answer_status then
    return {}
end
change(KEYS[FIRST_RECORD], record, {answer_status = false, answer_headers = false, answer_body = false})
return {row({clock}, record)}
