-- The outbox: jobs written with the handler's own transaction, taken by any number of workers.

-- name: accept
-- The handler's transaction ends with this: its claim becomes a pending operation.
update {keys} set
    state = {to:accept}, locked_until = null, last_run_at = {now}, expires_at = {now} + :ttl_ms, mark = :mark
where scope = :scope and `key` = :key and attempt = :attempt and state in ({from:lease_end})
-- then
select {now}, expires_at from {keys} where scope = :scope and `key` = :key and mark = :mark

-- name: enqueue
-- One job, in the handler's transaction.
insert into {jobs} (
    id, operation_id, scope, `key`, tenant, name, payload, answers, state, attempts, due_at, created_at
)
values (
    :id, :operation_id, :scope, :key, :tenant, :name, :payload, :answers, 'live', 0, {now}, {now}
)

-- name: take_jobs
-- A batch of due jobs, each under an attempt id of its own. Those that have had all their attempts are
-- taken too: the worker writes them off, because a job that kills its process can do no more itself.
-- A suspect is a job whose worker fell silent, and not for the first time: it is taken only to run alone.
select id from {jobs} force index (samekey_jobs_due)
where state = 'live' and due_at <= {now} and (attempt is not null and attempts > 1) = :suspects
order by due_at limit :batch
for update skip locked
-- then
update {jobs} set
    attempt = concat(:token, id), attempts = attempts + 1, due_at = {now} + :lease_ms,
    first_run_at = coalesce(first_run_at, {now})
where id in (:locked)
-- then
select id, operation_id, scope, `key`, tenant, name, payload, answers, attempt, attempts, created_at, {now}
from {jobs} where id in (:locked)

-- name: next_due
-- How long until there is something to take, in milliseconds; null if nothing waits.
select min(due_at) - {now} from {jobs} where state = 'live'

-- name: suspect_due
select 1 from {jobs}
where state = 'live' and due_at <= {now} and attempt is not null and attempts > 1
limit 1

-- name: renew_jobs
-- The running jobs of a worker at once; gives back the attempts that it renewed. A job that somebody has locked
-- is left out: it must not keep the others from being renewed.
select id from {jobs} where id in (:ids) and state = 'live' and attempt in (:attempts)
for update skip locked
-- then
update {jobs} set due_at = {now} + :lease_ms where id in (:locked)
-- then
select attempt from {jobs} where id in (:locked)

-- name: held_jobs
-- The attempts that still have their job, locked or not.
select attempt from {jobs} where id in (:ids) and state = 'live' and attempt in (:attempts)

-- name: finish_job
-- Only the attempt that holds the job may finish it.
update {jobs} set state = 'done', done_at = {now}, provider_id = coalesce(:provider_id, provider_id),
    error = null, mark = :mark
where id = :id and attempt = :attempt and state = 'live'
-- then
select {now} from {jobs} where id = :id and mark = :mark

-- name: note_provider_id
-- Kept even if the job fails after all.
update {jobs} set provider_id = :provider_id, mark = :mark
where id = :id and attempt = :attempt and state = 'live'
-- then
select {now} from {jobs} where id = :id and mark = :mark

-- name: retry_job
-- Back into the queue, to be tried again after a pause.
update {jobs} set due_at = {now} + :pause_ms, error = :error, attempt = null,
    attempts = attempts - :forgiven, mark = :mark
where id = :id and attempt = :attempt and state = 'live'
-- then
select {now} from {jobs} where id = :id and mark = :mark

-- name: bury_job
-- All attempts are used up: an operator decides.
update {jobs} set state = 'dead', done_at = {now}, error = :error, mark = :mark
where id = :id and attempt = :attempt and state = 'live'
-- then
select {now} from {jobs} where id = :id and mark = :mark

-- name: complete_operation
-- The final answer of a deferred operation.
update {keys} set
    state = {to:complete}, answer_version = :answer_version,
    answer_status = :answer_status, answer_headers = :answer_headers,
    answer_body = :answer_body, completed_at = {now},
    expires_at = {now} + (expires_at - last_run_at),
    error_code = null, provider_id = coalesce(:provider_id, provider_id)
where scope = :scope and `key` = :key and id = :operation_id and state = 'pending'

-- name: bury_operation
-- The operation of a job that was given up; what is known of the provider's id is kept with it.
update {keys} set
    state = {to:give_up}, error_code = :error_code,
    provider_id = coalesce((select j.provider_id from {jobs} as j where j.id = :job_id), provider_id)
where scope = :scope and `key` = :key and id = :operation_id and state = 'pending'

-- name: count_jobs
select state, count(*) from {jobs} group by state
