-- Upkeep: leases that ran out, records past retention, operations that nobody started.
--
-- Each statement locks a small batch, skipping what somebody else holds, and changes those rows. The index is
-- named: by another one all rows of a state would be read and locked to find the few that are due, and which one
-- the server takes depends on statistics that may be old.

-- name: sweep  event: lease_end
-- Moves records whose lease ran out, each by its mode, before a retry has to do it. Those of a mode that this version
-- does not know are left to one that does.
select id from {keys} force index (samekey_keys_lease)
where state in ({from:lease_end}) and mode in ({swept}) and locked_until <= {now}
order by locked_until limit :batch
for update skip locked
-- then
update {keys} set
    state = {lease_end}, locked_until = null, error_code = 'lease_ended',
    reconcile_after = case when {lease_end} = 'unknown' then {now} end, expires_at = {now} + ttl_ms
where id in (:locked)
-- then
select {now}, {record} from {keys} where id in (:locked)

-- name: sweep_unbegun  event: fail, dispute
-- Phased work is the completer's, but it cannot call what has no input. The input is stored before the first
-- phase, so nothing has happened and a retry may run it; unless a provider says otherwise.
select k.id from {keys} as k force index (samekey_keys_lease)
where k.state = 'in_progress' and k.mode = 'phased' and k.locked_until <= {now}
    and not exists (
        select /*+ no_semijoin() */ 1 from {inputs} as i where i.operation_id = k.id
    )
order by k.locked_until limit :batch
for update skip locked
-- then
update {keys} set
    state = case when disputed = 1 then {to:dispute} else {to:fail} end, locked_until = null,
    error_code = 'never_begun', reconcile_after = case when disputed = 1 then {now} end, expires_at = {now} + ttl_ms
where id in (:locked)
-- then
select {now}, {record} from {keys} where id in (:locked)

-- name: count_sweep
-- What a sweep would move, by mode.
select mode, count(*) from {keys} as k
where state = 'in_progress' and locked_until <= {now} and (
    mode <> 'phased' or not exists (
        select /*+ no_semijoin() */ 1 from {inputs} as i where i.operation_id = k.id
    )
)
group by mode order by mode

-- name: unfinished
-- What is left of an operation whose retention is over: which kind of part, its name, its state. Without a row its
-- record may go and its key is free.
select 'job', j.name, j.state from {jobs} as j
where j.operation_id = :operation_id and {open:j}
union all
select 'phase', p.name, case p.done when 1 then 'done' else 'open' end
from {phases} as p join {keys} as k on k.id = p.operation_id
where p.operation_id = :operation_id and {open:p}
union all
select 'event', v.source, v.state
from {evidence} as v join {keys} as k on k.id = v.operation_id
where v.operation_id = :operation_id and {open:v}

-- name: reap  event: reap
-- Deletes settled records past retention after which the key may run again. What is in flight or unknown is never
-- touched, nor is what is left of an operation ({kept:k}): jobs to run or to be seen, phases, a provider's word.
select k.id from {keys} as k force index (samekey_keys_expiry)
where k.state in ('completed', 'failed_retryable') and k.expires_at <= {now} and k.after_expiry = 'new'
    and not {kept:k}
order by k.expires_at limit :batch
for update skip locked
-- then
delete from {keys} where id in (:locked)

-- name: bury_answers  event: expire
-- Keeps the fact and drops the answer, where something else than a second run follows expiry. After "gone" the
-- tombstone stays for good: a key that was answered 410 never runs again. In the order of its index, so that it reads and
-- locks a batch and no more.
select id from {keys} as k force index (samekey_keys_burial)
where after_expiry in ('ask', 'gone') and expires_at <= {now} and state in ({from:expire}) and not {kept:k}
order by after_expiry, expires_at limit :batch
for update skip locked
-- then
update {keys} set
    state = {to:expire}, answer_version = null, answer_status = null, answer_headers = null,
    answer_body = null, expires_at = case after_expiry when 'gone' then {for_ever} else {now} + :keep_ms end
where id in (:locked)
-- then
select id from {keys} where id in (:locked)

-- name: bury_softly  event: expire
-- The same of records that would be deleted.
select id from {keys} as k force index (samekey_keys_expiry)
where state in ({from:expire}) and expires_at <= {now} and after_expiry = 'new' and not {kept:k}
order by expires_at limit :batch
for update skip locked
-- then
update {keys} set
    state = {to:expire}, answer_version = null, answer_status = null, answer_headers = null,
    answer_body = null, expires_at = {now} + :keep_ms
where id in (:locked)
-- then
select id from {keys} where id in (:locked)

-- name: reap_tombstones  event: reap
-- Deletes tombstones whose own time is over.
select k.id from {keys} as k force index (samekey_keys_expiry)
where k.state = 'expired' and k.expires_at <= {now} and k.after_expiry <> 'gone'
    and not {kept:k}
order by k.expires_at limit :batch
for update skip locked
-- then
delete from {keys} where id in (:locked)

-- name: count_reap
-- What a reaper would find, by state.
select state, count(*) from ({reapable}) as r group by state order by state

-- name: reap_jobs
-- Of answers that were buried. A job that is to run, or that an operator must see, stays.
delete from {jobs} where operation_id in (:ids) and state in ('done', 'cancelled', 'discarded')

-- name: reap_lone_jobs
-- Jobs that have ended after their operation was gone: nothing else takes them away.
select id from {jobs} force index (samekey_jobs_alone)
where alone = 1 and state in ('done', 'cancelled', 'discarded') and done_at <= {now} - :keep_ms
order by done_at limit :batch
for update skip locked
-- then
delete from {jobs} where id in (:locked)

-- name: reap_phases
delete from {phases} where operation_id in (:ids)

-- name: reap_inputs
delete from {inputs} where operation_id in (:ids)

-- name: reap_evidence
delete from {evidence} where operation_id in (:ids)

-- name: find_abandoned
-- Pending operations that have waited too long and of which no worker has ever begun anything. What was begun
-- may have happened, so its client must not be told that it will not. A job
-- waits from when it is due: one that was put off for three days has not waited yet.
select k.scope, k.`key`, k.id from {keys} as k
where k.state = 'pending' and k.last_run_at <= {now} - :timeout_ms
    and not exists (
        select /*+ no_semijoin() */ 1 from {jobs} as j where j.operation_id = k.id and (
            j.sends > 0 or (j.state = 'live' and j.due_at > {now} - :timeout_ms)
        )
    )
order by k.last_run_at limit :batch

-- name: count_abandoned
select count(*) from {keys} as k
where k.state = 'pending' and k.last_run_at <= {now} - :timeout_ms
    and not exists (
        select /*+ no_semijoin() */ 1 from {jobs} as j where j.operation_id = k.id and (
            j.sends > 0 or (j.state = 'live' and j.due_at > {now} - :timeout_ms)
        )
    )

-- name: cancel_jobs
-- Cancels an operation's jobs, except one that a worker has ever taken.
update {jobs} set state = 'cancelled', done_at = {now}, error = 'timed out'
where operation_id = :operation_id and state = 'live' and sends = 0

-- name: count_begun
select count(*) from {jobs} where operation_id = :operation_id and sends > 0

-- name: time_out  event: time_out
-- Closes a pending operation with a stored failure.
update {keys} set
    state = {to:time_out}, answer_version = :answer_version,
    answer_status = :answer_status, answer_headers = :answer_headers,
    answer_body = :answer_body, completed_at = {now},
    expires_at = {expiry}, error_code = 'timed_out', mark = :mark
where scope = :scope and `key` = :key and id = :operation_id and state in ({from:time_out})
-- then
select {now} from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: audit_slice
-- The next lines of the audit, oldest first: up to which, the newest of them, and how many may go. The story of an
-- operation that is still there stays whole, and of its key's former lives, that they ended: it says how many they were.
select max(s.id), max(s.at), count(case when s.at < :before and not exists (
    select 1 from {keys} as k where k.scope = s.scope and k.`key` = s.`key`
        and (k.id = s.operation_id or (s.to_state is null and s.from_state <> 'in_progress'))
) then 1 end) from (
    select id, at, scope, `key`, operation_id, from_state, to_state from {audit} where id > :after order by id limit :batch
) as s

-- name: prune_audit
delete from {audit} where id > :after and id <= :last and at < :before and not exists (
    select /*+ no_semijoin() */ 1 from {keys} as k where k.scope = {audit}.scope and k.`key` = {audit}.`key`
        and (k.id = {audit}.operation_id or ({audit}.to_state is null and {audit}.from_state <> 'in_progress'))
)

-- name: note_pruning
-- It leaves its own trace, which belongs to no key.
insert into {audit} (at, operation_id, scope, `key`, tenant, from_state, to_state, actor, reason)
values ({now}, '', '', '', '', 'pruned', 'pruned', :actor, :reason)
