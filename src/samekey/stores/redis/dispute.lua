-- durable
-- event: dispute
-- A provider says that it happened, and that could not settle the record: it is not free any more, nor will be.
local record = load(KEYS[FIRST_RECORD])
if not record or record.id ~= p.operation_id or record.attempt ~= p.attempt
    or {table:settled}[record.state] then
    return {}
end
local columns = {disputed = with_dispute(record, p.event)}
if record.state == {state:failed_retryable} then
    columns.state, columns.reconcile_after = {to:dispute}, clock
end
change(KEYS[FIRST_RECORD], record, columns)
return {{clock}}
