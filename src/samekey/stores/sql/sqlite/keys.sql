-- The statements of the SQLite store. SQLite has no data-changing CTE, so a claim looks first and then
-- inserts or does nothing: the primary key is the arbiter, the look only spares the write.
--
-- :name      a parameter
-- {now}      this machine's clock in milliseconds, or :now where a test gives one
-- {record}   the columns of a record, in the order of core/record.py
-- {expiry}   when the record ends if it is settled now
-- {kept}     something of its operation is left: a job to run or to be seen, a phase, a provider's word
-- {noted}    the attempt id of a record that its holder has noted something of
-- {over}     its retention is over, nothing of its operation is left, and something may follow
-- {from:e}   the states that event e may leave, {to:e} the state that it enters (core/states.py)

-- name: find
-- The record of a key, if any; always one row, so that the store's clock comes along.
select {now}, {record} from (select 1) as one
left join {keys} on scope = :scope and key = :key

-- name: reserve  event: claim
-- Insert or nothing. No row: somebody else was first, and the caller looks again.
insert into {keys} (
    scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt,
    attempts, locked_until, downstream, life, ttl_ms, ttl_from, after_expiry, created_at, last_run_at, expires_at
)
select
    :scope, :key, :id, :tenant, :endpoint, :fingerprint, :fingerprint_version, {to:claim}, :mode,
    :attempt, 1, {now} + :lease_ms, :downstream, 1, :ttl_ms, :ttl_from, :after_expiry, {now}, {now}, {now} + :ttl_ms
where true
on conflict (scope, key) do nothing
returning {now}, 1, {record}

-- name: find_by_id
select {now}, {record} from {keys} where id = :id

-- name: find_former
-- Whether an operation of this tenant's had that id: the audit outlives the record.
select {now} from {audit} where operation_id = :id and tenant = :tenant limit 1

-- name: find_by_downstream
select {now}, {record} from {keys} where downstream = :downstream limit 2

-- name: retry  event: retry
-- One retry wins the right to run a failed operation again: the attempt it saw must still be there.
update {keys} set
    state = {to:retry}, mode = :mode, attempt = :attempt, attempts = attempts + 1,
    locked_until = {now} + :lease_ms, last_run_at = {now}, expires_at = {now} + ttl_ms,
    error_code = null, provider_id = null, reconcile_tries = 0, downstream = coalesce(downstream, :downstream)
where scope = :scope and key = :key and attempt = :seen and state in ({from:retry})
returning {now}, {record}

-- name: resume  event: resume
-- Takes over phased work whose lease ran out, under a new attempt.
update {keys} set
    state = {to:resume}, attempt = :attempt, attempts = attempts + 1,
    locked_until = {now} + :lease_ms, last_run_at = {now}
where scope = :scope and key = :key and attempt = :seen and state in ({from:resume})
    and mode = 'phased' and locked_until <= {now}
returning {now}, {record}

-- name: reuse  event: claim
-- A new life of a key whose retention is over, whether or not the reaper has been by. It is a new operation: a
-- trigger has the former one make room for it, and what refers to it (on delete set null) forgets it.
insert into {keys} (
    scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt,
    attempts, locked_until, downstream, life, ttl_ms, ttl_from, after_expiry, created_at, last_run_at, expires_at
)
select
    :scope, :key, :id, :tenant, :endpoint, :fingerprint, :fingerprint_version, {to:claim}, :mode,
    :attempt, 1, {now} + :lease_ms, :downstream, life + 1, :ttl_ms, :ttl_from, :after_expiry, {now}, {now},
    {now} + :ttl_ms
from {keys} where scope = :scope and key = :key and attempt = :seen and {over}
returning {now}, {record}

-- name: end_lease  event: lease_end
-- Moves a record whose lease ran out, by its mode.
update {keys} set
    state = {lease_end}, locked_until = null, error_code = 'lease_ended',
    reconcile_after = case when {lease_end} = 'unknown' then {now} end, expires_at = {now} + ttl_ms
where scope = :scope and key = :key and attempt = :seen and state in ({from:lease_end})
    and mode <> 'phased' and locked_until <= {now}
returning {now}, {record}

-- name: renew
-- All live leases of a process at once; gives back the attempts that are still ours.
update {keys} set locked_until = {now} + (
    select json_extract(l.value, '$[3]') from json_each(:leases) as l
    where json_extract(l.value, '$[2]') = {keys}.attempt
)
where state in ({from:lease_end}) and (scope, key, attempt) in (
    select json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]')
    from json_each(:leases)
)
returning attempt

-- name: complete  event: complete
-- The holder's answer. Nothing happens if anybody else has taken the record, or if it says no and a provider's yes
-- waits (see hold), unless the handler knew of each that waits (:heeded).
update {keys} set
    state = {to:complete}, answer_version = :answer_version, answer_status = :answer_status,
    answer_headers = :answer_headers, answer_body = :answer_body, completed_at = {now},
    locked_until = null,
    expires_at = {expiry}, error_code = null, reconcile_after = null, provider_id = coalesce(:provider_id, provider_id)
where scope = :scope and key = :key and attempt = :attempt and state in ({from:complete})
    and (disputed = 0 or :happened = 1 or :heeded is not null)
returning {now}, expires_at

-- name: fail  event: fail
-- The holder proves that nothing happened.
update {keys} set
    state = {to:fail}, locked_until = null, error_code = :error_code, reconcile_after = null,
    expires_at = {now} + ttl_ms
where scope = :scope and key = :key and attempt = :attempt and state in ({from:fail}) and disputed = 0
returning {now}, expires_at

-- name: lose  event: lose
-- The holder cannot tell what happened. What it notes of an outcome that others may be asking about by now is news
-- to them: {noted}.
update {keys} set
    attempt = {noted}, state = {to:lose}, locked_until = null, error_code = :error_code, reconcile_after = {now},
    provider_id = coalesce(:provider_id, provider_id)
where scope = :scope and key = :key and attempt = :attempt and state in ({from:lose})
returning {now}, expires_at

-- name: release  event: release
-- The holder frees the key. Not one that has had a former life: what that has made must stay known (see fail).
delete from {keys}
where scope = :scope and key = :key and attempt = :attempt and state in ({from:release}) and disputed = 0 and life = 1
returning {now}, expires_at

-- name: hold  event: dispute
-- The holder would free the key, but a provider says that it happened, and that word waits: nobody runs it before
-- somebody has found out.
update {keys} set
    attempt = {noted}, state = {to:dispute}, locked_until = null, error_code = :error_code, reconcile_after = {now}
where scope = :scope and key = :key and attempt = :attempt
    and state in ({from:dispute}) and disputed = 1
returning {now}, expires_at

-- name: expire  event: expire
-- Retention is over: keep the fact, drop the answer.
update {keys} set
    state = {to:expire}, answer_version = null, answer_status = null, answer_headers = null,
    answer_body = null
where scope = :scope and key = :key and state in ({from:expire}) and expires_at <= {now}
    and not {kept}
returning {now}, expires_at

-- name: schema_versions
select version, min_compatible from {versions} order by version

-- name: create_versions
create table if not exists {versions} (
    version        integer primary key,
    min_compatible integer not null,
    applied_at     text not null default (datetime('now'))
)

-- name: schema_exists
select count(*) from sqlite_master where type = 'table' and name = 'samekey_schema_versions'

-- name: note_version
insert into {versions} (version, min_compatible) values (:version, :min_compatible)
