-- durable
-- event: give_up
local record = operation({[{state:unknown}] = true})
if not record then
    return {}
end
change(KEYS[FIRST_RECORD], record, {state = {to:give_up}, attempt = nobodys(record), reconcile_after = false})
return {{clock}}
