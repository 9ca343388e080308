-- Finding out and overriding: the reconciler's and the operator's statements. Each act is audited.

-- name: act_as
-- Who acts in this transaction and why; the audit trigger reads it.
select set_config('samekey.actor', :actor::text, true), set_config('samekey.reason', :reason::text, true)

-- name: act_end
select set_config('samekey.actor', '', true), set_config('samekey.reason', '', true)

-- name: take_unknown
-- Unknown outcomes whose time has come. Moving their date on keeps other reconcilers away meanwhile.
with due as materialized (
    select scope as due_scope, key as due_key from {keys}
    where state = 'unknown' and reconcile_after <= {now}
    order by reconcile_after limit :batch::bigint for update skip locked
)
update {keys} set reconcile_after = {now} + :lease_ms::bigint, reconcile_tries = reconcile_tries + 1
from due where scope = due_scope and key = due_key and state = 'unknown' and {durable}
returning reconcile_tries, {record}

-- name: ask_again
update {keys} set reconcile_after = {now} + :pause_ms::bigint
where id = :operation_id::text and state = 'unknown'
returning {now}

-- name: found_executed
-- It happened (or was declined): this is its answer.
update {keys} set
    state = {to:found_executed}, answer_version = :answer_version::bigint,
    answer_status = :answer_status::bigint, answer_headers = :answer_headers::bytea,
    answer_body = :answer_body::bytea, completed_at = {now}, locked_until = null,
    expires_at = {now} + greatest(expires_at - last_run_at, 0), reconcile_after = null,
    provider_id = coalesce(:provider_id::text, provider_id)
where id = :operation_id::text and state in ({from:found_executed}) and {durable}
returning {now}, {record}

-- name: found_not_executed
-- It never happened: one retry may run.
update {keys} set
    state = {to:found_not_executed}, locked_until = null, reconcile_after = null,
    expires_at = {now} + greatest(expires_at - last_run_at, 0)
where id = :operation_id::text and state in ({from:found_not_executed}) and {durable}
returning {now}, {record}

-- name: give_up_finding
update {keys} set state = {to:give_up}, reconcile_after = null
where id = :operation_id::text and state = 'unknown' and {durable}
returning {now}

-- name: evict_answer
-- Drops a stored answer; the fact stays, so a retry is told that it was done and is not run.
update {keys} set answer_status = null, answer_headers = null, answer_body = null
where id = :operation_id::text and state = 'completed' and answer_status is not null and {durable}
returning {now}, {record}

-- name: note_act
-- An act that changes no state still leaves its trace.
insert into {audit} (at, operation_id, scope, key, tenant, from_state, to_state, attempt, actor, reason)
select {now}, id, scope, key, tenant, state, state, attempt, :actor::text, :reason::text
from {keys} where id = :operation_id::text

-- name: revive_pending
-- A deferred operation whose dead job is tried again.
update {keys} set state = {to:requeue}, error_code = null
where id = :operation_id::text and mode = 'deferred' and state in ({from:requeue}) and {durable}
returning {now}

-- name: revive_phased
-- A phased operation is left to the completer again.
update {keys} set state = {to:revive}, locked_until = {now}, attempts = 1, error_code = null
where id = :operation_id::text and mode = 'phased' and state in ({from:revive}) and {durable}
returning {now}

-- name: revive_job
update {jobs} set state = 'live', attempt = null, attempts = 0, due_at = {now}, done_at = null
where id = :id::text and state = 'dead' and {durable}
returning operation_id

-- name: discard_job
update {jobs} set state = 'discarded', done_at = {now}
where id = :id::text and state = 'dead' and {durable}
returning operation_id

-- name: find_job
select id, operation_id, scope, key, tenant, name, payload, answers, attempt, attempts, created_at, {now},
    state, error, provider_id, done_at
from {jobs} where id = :id::text

-- name: list_dead_jobs
select id, operation_id, scope, key, tenant, name, payload, answers, attempt, attempts, created_at, {now},
    state, error, provider_id, done_at
from {jobs} where state = 'dead' order by created_at limit :limit::bigint

-- name: list_keys
select {now}, {record} from {keys}
where (:state::text is null or state = :state::text)
    and (:tenant::text is null or tenant = :tenant::text)
    and (:key::text is null or key = :key::text)
    and (:created_before::bigint is null or created_at < :created_before::bigint)
order by created_at desc, id limit :limit::bigint

-- name: timeline
select at, from_state, to_state, attempt, actor, reason from {audit}
where scope = :scope::text and key = :key::text order by id

-- name: timeline_of_operation
select at, from_state, to_state, attempt, actor, reason from {audit}
where operation_id = :operation_id::text order by id

-- name: note_evidence
-- An event of the provider's, once. No row: it was there already.
insert into {evidence} (event_id, operation_id, outcome, applied, received_at)
values (:event_id::text, :operation_id::text, :outcome::bytea, :applied::bigint, {now})
on conflict (event_id) do nothing
returning event_id

-- name: waiting_evidence
select event_id, outcome from {evidence}
where operation_id = :operation_id::text and applied = 0 order by received_at limit 1

-- name: use_evidence
update {evidence} set applied = 1 where event_id = :event_id::text and applied = 0 returning event_id

-- name: mark_evidence
update {evidence} set applied = :applied::bigint where event_id = :event_id::text

-- name: overview
-- What a doctor looks at, in one row.
select
    {now},
    (select count(*) from {keys})::bigint,
    (select count(*) from {keys} where state = 'unknown')::bigint,
    (select min(last_run_at) from {keys} where state = 'unknown'),
    (select count(*) from {keys} where state = 'dead_letter')::bigint,
    (select count(*) from {keys} where state = 'in_progress' and locked_until <= {now})::bigint,
    (select min(locked_until) from {keys} where state = 'in_progress'),
    (select count(*) from {keys} where state in ({from:reap}) and expires_at <= {now})::bigint,
    (select count(*) from {jobs} where state = 'live')::bigint,
    (select min(due_at) from {jobs} where state = 'live'),
    (select count(*) from {jobs} where state = 'dead')::bigint,
    (select count(*) from {keys} where state = 'pending')::bigint

-- name: durations
-- How long recent operations took, in milliseconds.
select completed_at - last_run_at from {keys}
where state = 'completed' and completed_at is not null and mode in ('leased', 'repeatable', 'phased')
order by completed_at desc limit :limit::bigint
