-- The outbox: jobs written with the handler's own transaction, taken by any number of workers.

-- name: accept
-- The handler's transaction ends with this: its claim becomes a pending operation.
update {keys} set
    state = {to:accept}, locked_until = null, last_run_at = {now}, expires_at = {now} + :ttl_ms
where scope = :scope and key = :key and attempt = :attempt and state in ({from:lease_end})
returning {now}, expires_at

-- name: enqueue
-- One job, in the handler's transaction.
insert into {jobs} (
    id, operation_id, scope, key, tenant, name, payload, answers, state, attempts, due_at, created_at
)
values (
    :id, :operation_id, :scope, :key, :tenant, :name, :payload, :answers, 'live', 0, {now}, {now}
)

-- name: take_jobs
-- A batch of due jobs, each under an attempt id of its own. Those that have had all their attempts are
-- taken too: the worker writes them off, because a job that kills its process can do no more itself.
-- A suspect is a job whose worker fell silent, and not for the first time: it is taken only to run alone.
update {jobs} set
    attempt = :token || id, attempts = attempts + 1, due_at = {now} + :lease_ms,
    first_run_at = coalesce(first_run_at, {now})
where id in (
    select id from {jobs}
    where state = 'live' and due_at <= {now} and (attempt is not null and attempts > 1) = :suspects
    order by due_at limit :batch
)
returning id, operation_id, scope, key, tenant, name, payload, answers, attempt, attempts, created_at, {now}

-- name: next_due
-- How long until there is something to take, in milliseconds; null if nothing waits.
select min(due_at) - {now} from {jobs} where state = 'live'

-- name: suspect_due
select 1 from {jobs}
where state = 'live' and due_at <= {now} and attempt is not null and attempts > 1
limit 1

-- name: renew_jobs
-- All running jobs of a worker at once; gives back the attempts that are still ours.
update {jobs} set due_at = {now} + :lease_ms
where id in (select value from json_each(:id_list)) and state = 'live'
    and attempt in (select value from json_each(:attempt_list))
returning attempt

-- name: held_jobs
-- The attempts that still have their job.
select attempt from {jobs}
where id in (select value from json_each(:id_list)) and state = 'live'
    and attempt in (select value from json_each(:attempt_list))

-- name: finish_job
-- Only the attempt that holds the job may finish it.
update {jobs} set state = 'done', done_at = {now}, provider_id = coalesce(:provider_id, provider_id),
    error = null
where id = :id and attempt = :attempt and state = 'live'
returning {now}

-- name: note_provider_id
-- Kept even if the job fails after all.
update {jobs} set provider_id = :provider_id
where id = :id and attempt = :attempt and state = 'live'
returning {now}

-- name: retry_job
-- Back into the queue, to be tried again after a pause.
update {jobs} set due_at = {now} + :pause_ms, error = :error, attempt = null,
    attempts = attempts - :forgiven
where id = :id and attempt = :attempt and state = 'live'
returning {now}

-- name: bury_job
-- All attempts are used up: an operator decides.
update {jobs} set state = 'dead', done_at = {now}, error = :error
where id = :id and attempt = :attempt and state = 'live'
returning {now}

-- name: complete_operation
-- The final answer of a deferred operation.
update {keys} set
    state = {to:complete}, answer_version = :answer_version,
    answer_status = :answer_status, answer_headers = :answer_headers,
    answer_body = :answer_body, completed_at = {now},
    expires_at = {now} + (expires_at - last_run_at),
    error_code = null, provider_id = coalesce(:provider_id, provider_id)
where scope = :scope and key = :key and id = :operation_id
    and state = 'pending'
returning {now}

-- name: bury_operation
-- The operation of a job that was given up; what is known of the provider's id is kept with it.
update {keys} set
    state = {to:give_up}, error_code = :error_code,
    provider_id = coalesce((select j.provider_id from {jobs} as j where j.id = :job_id), provider_id)
where scope = :scope and key = :key and id = :operation_id
    and state = 'pending'
returning {now}

-- name: count_jobs
select state, count(*) from {jobs} group by state
