local record = operation({[{state:unknown}] = true})
if not record then
    return {}
end
change(KEYS[FIRST_RECORD], record, {reconcile_after = clock + p.pause_ms})
return {{clock}}
