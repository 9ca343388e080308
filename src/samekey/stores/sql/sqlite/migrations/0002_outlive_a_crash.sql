-- min_compatible: 1
-- What an operation needs to go on without its client: its input, its finished phases, its jobs.

-- The input of phased work, for the completer. Dropped when the operation completes.
create table samekey_inputs (
    operation_id text primary key,
    name         text not null,
    version      integer not null,
    payload      blob not null,
    created_at   integer not null
);

-- The recovery points. An effect is written before its call (done = 0) and again after it (done = 1).
create table samekey_phases (
    operation_id text not null,
    position     integer not null,
    name         text not null,
    kind         text not null,
    done         integer not null,
    result       blob,
    provider_id  text,
    intent_at    integer not null,
    done_at      integer,
    primary key (operation_id, position)
);

-- The outbox. A live job may be taken once due_at has come; taking it moves due_at by the lease.
create table samekey_jobs (
    id            text primary key,
    operation_id  text not null,
    scope         text not null,
    key           text not null,
    tenant        text not null,
    name          text not null,
    payload       blob not null,
    answers       integer not null,
    state         text not null,
    attempt       text,
    attempts      integer not null,
    due_at        integer not null,
    provider_id   text,
    error         text,
    created_at    integer not null,
    first_run_at  integer,
    done_at       integer
);

create index samekey_jobs_due on samekey_jobs (due_at) where state = 'live';
create index samekey_jobs_operation on samekey_jobs (operation_id);
create index samekey_jobs_dead on samekey_jobs (created_at) where state = 'dead';

-- The reaper: pending operations that nobody started.
create index samekey_keys_pending on samekey_keys (last_run_at) where state = 'pending';
