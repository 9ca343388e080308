-- The statements of the MySQL and MariaDB store. They keep to what both have: no RETURNING.
--
-- :name      a parameter
-- {now}      the store's clock in milliseconds, or :now where a test gives one
-- {record}   the columns of a record, in the order of core/record.py
-- {expiry}   when the record ends if it is settled now
-- {kept}     something of its operation is left: a job to run or to be seen, a phase, a provider's word
-- {noted}    the attempt id of a record that its holder has noted something of
-- {over}     its retention is over, nothing of its operation is left, and something may follow
-- {from:e}   the states that event e may leave, {to:e} the state that it enters (core/states.py)
-- -- then    what follows on the same connection; the last rows that there are count
-- :mark      16 random bytes, new with every execution
-- :locked    the first column of the rows before; without rows the statement ends there
-- /*+ … */   a word to MySQL's planner, a comment to MariaDB: ask for each record, or it reads the other table whole
--
-- Who won is never told by the number of affected rows: it depends on a flag of the connection (FOUND_ROWS).
-- A change of one row signs it with :mark, and what comes after reads the row that bears the mark. The two need
-- no transaction around them: a process that dies in between is one that never heard the answer, and whoever
-- moves the row in between has signed it anew. A change of many rows locks them first, skipping what somebody
-- else holds, and is a transaction (the driver makes one where there is none).
--
-- Assignments are made from left to right and see those before them, or all at once (a mode of MariaDB's): no
-- expression here may depend on which.

-- name: reserve  event: claim
-- Insert or nothing, then the record that is there: ours if it bears our attempt id. A replay finds the key in
-- a read that locks nothing, so it waits for nobody. Two that insert at once are told apart by the primary key;
-- the second waits until the first has committed, which is this one statement.
insert into {keys} (
    scope, `key`, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt,
    attempts, locked_until, downstream, life, ttl_ms, ttl_from, after_expiry, created_at, last_run_at, expires_at
)
select
    :scope, :key, :id, :tenant, :endpoint, :fingerprint, :fingerprint_version, {to:claim}, :mode,
    :attempt, 1, {now} + :lease_ms, :downstream, 1, :ttl_ms, :ttl_from, :after_expiry, {now}, {now}, {now} + :ttl_ms
from (select 1 as one) as one
where not exists (select 1 from {keys} as k where k.scope = :scope and k.`key` = :key)
on duplicate key update attempt = {keys}.attempt
-- then
select {now}, attempt = :attempt, {record} from {keys} where scope = :scope and `key` = :key

-- name: find
-- The record of a key, if any; always one row, so that the store's clock comes along.
select {now}, {record} from (select 1 as one) as one
left join {keys} on scope = :scope and `key` = :key

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
    error_code = null, provider_id = null, reconcile_tries = 0,
    downstream = coalesce(downstream, :downstream), mark = :mark
where scope = :scope and `key` = :key and attempt = :seen and state in ({from:retry})
-- then
select {now}, {record} from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: resume  event: resume
-- Takes over phased work whose lease ran out, under a new attempt.
update {keys} set
    state = {to:resume}, attempt = :attempt, attempts = attempts + 1,
    locked_until = {now} + :lease_ms, last_run_at = {now}, mark = :mark
where scope = :scope and `key` = :key and attempt = :seen and state in ({from:resume})
    and mode = 'phased' and locked_until <= {now}
-- then
select {now}, {record} from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: reuse  event: claim
-- A new life of a key whose retention is over, whether or not the reaper has been by. It is a new operation: the
-- former one goes, and what refers to it (on delete set null) forgets it. A row that is gone bears no mark, so it is
-- locked and looked at first. What the provider has made for it is known as a former life's: it must not be taken for
-- this one's.
select id from {keys}
where scope = :scope and `key` = :key and attempt = :seen and {over}
for update
-- then
insert ignore into {made} (operation_id, step, attempt, tenant, source, downstream_key, provider_id)
select :id, m.step, 'past', :tenant, m.source, m.downstream_key, m.provider_id
from {made} as m where m.operation_id in (:locked)
-- then
insert ignore into {made} (operation_id, step, attempt, tenant, source, downstream_key, provider_id)
select :id, e.step, 'past', :tenant, e.source, e.downstream_key, coalesce(j.provider_id, e.provider_id)
from {effects} as e left join {jobs} as j on e.kind = 'job' and j.id = e.place
where e.operation_id in (:locked) and coalesce(j.provider_id, e.provider_id) is not null
-- then
delete from {keys} where id in (:locked)
-- then
insert into {keys} (
    scope, `key`, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt,
    attempts, locked_until, downstream, life, ttl_ms, ttl_from, after_expiry, created_at, last_run_at, expires_at, mark
)
select
    :scope, :key, :id, :tenant, :endpoint, :fingerprint, :fingerprint_version, {to:claim}, :mode,
    :attempt, 1, {now} + :lease_ms, :downstream, :life, :ttl_ms, :ttl_from, :after_expiry, {now}, {now},
    {now} + :ttl_ms, :mark
from (select 1 as one) as one where '' not in (:locked)
-- then
select {now}, {record} from {keys} where scope = :scope and `key` = :key and mark = :mark and '' not in (:locked)

-- name: end_lease  event: lease_end
-- Moves a record whose lease ran out, by its mode.
update {keys} set
    state = {lease_end}, locked_until = null, error_code = 'lease_ended',
    reconcile_after = case when {lease_end} = 'unknown' then {now} end, expires_at = {now} + ttl_ms, mark = :mark
where scope = :scope and `key` = :key and attempt = :seen and state in ({from:lease_end})
    and mode <> 'phased' and locked_until <= {now}
-- then
select {now}, {record} from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: renew
-- Many leases of a process at once; gives back the attempts that it renewed. A record that somebody has locked
-- is left out and has its turn later: it must not keep the others from being renewed. MySQL locks nothing where a
-- json_table stands beside the rows (3569), so it stands in a query of its own.
select k.id
from (select j.scope, j.name, j.attempt from json_table(convert(:leases using utf8mb4), '$[*]' columns (
    scope varbinary(1536) path '$[0]', name varbinary(1024) path '$[1]', attempt varbinary(255) path '$[2]'
)) as j) as l
straight_join {keys} as k force index (primary)
    on k.scope = l.scope and k.`key` = l.name and k.attempt = l.attempt
where k.state in ({from:lease_end})
for update skip locked
-- then
update json_table(convert(:leases using utf8mb4), '$[*]' columns (
    attempt varbinary(255) path '$[2]', duration bigint path '$[3]'
)) as l
join {keys} as k on k.attempt = l.attempt
set k.locked_until = {now} + l.duration
where k.id in (:locked)
-- then
select attempt from {keys} where id in (:locked)

-- name: complete  event: complete
-- The holder's answer. Nothing happens if anybody else has taken the record, or if it says no and a provider's yes
-- waits (see hold), unless the handler knew of each that waits (:heeded).
update {keys} set
    state = {to:complete}, answer_version = :answer_version, answer_status = :answer_status,
    answer_headers = :answer_headers, answer_body = :answer_body, completed_at = {now},
    locked_until = null,
    expires_at = {expiry}, error_code = null, reconcile_after = null, provider_id = coalesce(:provider_id, provider_id), mark = :mark
where scope = :scope and `key` = :key and attempt = :attempt and state in ({from:complete})
    and (disputed = 0 or :happened = 1 or :heeded is not null)
-- then
select {now}, expires_at from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: fail  event: fail
-- The holder proves that nothing happened.
update {keys} set
    state = {to:fail}, locked_until = null, error_code = :error_code, reconcile_after = null,
    expires_at = {now} + ttl_ms, mark = :mark
where scope = :scope and `key` = :key and attempt = :attempt and state in ({from:fail}) and disputed = 0
-- then
select {now}, expires_at from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: lose  event: lose
-- The holder cannot tell what happened. What it notes of an outcome that others may be asking about by now is news
-- to them: {noted}.
update {keys} set
    attempt = {noted}, state = {to:lose}, locked_until = null, error_code = :error_code, reconcile_after = {now},
    provider_id = coalesce(:provider_id, provider_id), mark = :mark
where scope = :scope and `key` = :key and attempt = :attempt and state in ({from:lose})
-- then
select {now}, expires_at from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: release  event: release
-- The holder frees the key. Not one that has had a former life: what that has made must stay known (see fail).
-- A row that is gone bears no mark, so it is locked and looked at first.
select id from {keys}
where scope = :scope and `key` = :key and attempt = :attempt and state in ({from:release}) and disputed = 0 and life = 1
for update
-- then
delete from {keys} where id in (:locked)

-- name: hold  event: dispute
-- The holder would free the key, but a provider says that it happened, and that word waits: nobody runs it before
-- somebody has found out.
update {keys} set
    attempt = {noted}, state = {to:dispute}, locked_until = null, error_code = :error_code, reconcile_after = {now}, mark = :mark
where scope = :scope and `key` = :key and attempt = :attempt
    and state in ({from:dispute}) and disputed = 1
-- then
select {now}, expires_at from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: expire  event: expire
-- Retention is over: keep the fact, drop the answer.
update {keys} set
    state = {to:expire}, answer_version = null, answer_status = null, answer_headers = null,
    answer_body = null, mark = :mark
where scope = :scope and `key` = :key and state in ({from:expire}) and expires_at <= {now}
    and not {kept}
-- then
select {now}, expires_at from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: open_proof
-- First in atomic work: a savepoint lives as long as its transaction.
savepoint samekey_proof

-- name: close_proof
-- Last but the record: it fails if the handler has ended its transaction, also by a statement that commits
-- without saying so (CREATE, ALTER, TRUNCATE, LOCK TABLES …).
release savepoint samekey_proof

-- name: migration_patience
-- How long a statement of a migration queues for a table (MySQL counts whole seconds). Whoever wants the table
-- meanwhile queues behind it, so it gives up soon, by the server's own clock, and is tried again later.
set session lock_wait_timeout = 1

-- name: migration_waits_for
-- Whose transactions are open: one of them holds the table.
select trx_mysql_thread_id, 'a transaction', lower(trx_state), timestampdiff(second, trx_started, now())
from information_schema.innodb_trx where trx_mysql_thread_id <> connection_id()
order by trx_started

-- name: migration_lock
-- Migrators queue up here. DDL commits whatever is open, so a lock of the transaction would be gone with the
-- first table; this one is the session's.
select get_lock(concat('samekey ', left(sha2(database(), 256), 40)), 1)

-- name: migration_unlock
select release_lock(concat('samekey ', left(sha2(database(), 256), 40)))

-- name: schema_versions
select version, min_compatible from {versions} order by version

-- name: create_versions
create table if not exists {versions} (
    version        bigint primary key,
    min_compatible bigint not null,
    applied_at     timestamp not null default current_timestamp
) engine = InnoDB

-- name: schema_exists
select count(*) from information_schema.tables
where table_schema = database() and table_name = 'samekey_schema_versions'

-- name: note_version
-- A migration that was cut short begins again, each statement of it if it is not there yet.
insert into {versions} (version, min_compatible) values (:version, :min_compatible)
on duplicate key update min_compatible = :min_compatible

-- name: missing_rights
-- Asks for what every request needs and touches nothing: a right that is missing is an error, which names it.
update {keys} set attempts = attempts where 1 = 0
-- then
delete from {keys} where 1 = 0
-- then
insert into {keys} select * from {keys} where 1 = 0
-- then
update {inputs} set version = version where 1 = 0
-- then
delete from {inputs} where 1 = 0
-- then
insert into {inputs} select * from {inputs} where 1 = 0
-- then
update {phases} set position = position where 1 = 0
-- then
delete from {phases} where 1 = 0
-- then
insert into {phases} select * from {phases} where 1 = 0
-- then
update {jobs} set attempts = attempts where 1 = 0
-- then
delete from {jobs} where 1 = 0
-- then
insert into {jobs} select * from {jobs} where 1 = 0
-- then
update {effects} set step = step where 1 = 0
-- then
delete from {effects} where 1 = 0
-- then
insert into {effects} select * from {effects} where 1 = 0
-- then
update {evidence} set says = says where 1 = 0
-- then
delete from {evidence} where 1 = 0
-- then
insert into {evidence} select * from {evidence} where 1 = 0
-- then
update {limits} set used = used where 1 = 0
-- then
delete from {limits} where 1 = 0
-- then
insert into {limits} select * from {limits} where 1 = 0
-- then
delete from {made} where 1 = 0
-- then
insert into {made} select * from {made} where 1 = 0
-- then
insert into {audit} select * from {audit} where 1 = 0
-- then
select null
