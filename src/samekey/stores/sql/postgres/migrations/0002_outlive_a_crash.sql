-- min_compatible: 1
-- What an operation needs to go on without its client: its input, its finished phases, its jobs.

-- The input of phased work, for the completer. Dropped when the operation completes.
create table {schema}.inputs (
    operation_id text collate "C" primary key,
    name         text not null,
    version      bigint not null,
    payload      bytea not null,
    created_at   bigint not null
);

-- The recovery points. An effect is written before its call (done = 0) and again after it (done = 1).
create table {schema}.phases (
    operation_id text collate "C" not null,
    position     bigint not null,
    name         text not null,
    kind         text not null,
    done         bigint not null,
    result       bytea,
    provider_id  text collate "C",
    intent_at    bigint not null,
    done_at      bigint,
    primary key (operation_id, position)
);

-- The outbox. A live job may be taken once due_at has come; taking it moves due_at by the lease.
create table {schema}.jobs (
    id            text collate "C" primary key,
    operation_id  text collate "C" not null,
    scope         text collate "C" not null,
    key           text collate "C" not null,
    tenant        text not null,
    name          text not null,
    payload       bytea not null,
    answers       bigint not null,
    state         text not null,
    attempt       text collate "C",
    attempts      bigint not null,
    due_at        bigint not null,
    provider_id   text collate "C",
    error         text,
    created_at    bigint not null,
    first_run_at  bigint,
    done_at       bigint
);

create index jobs_due on {schema}.jobs (due_at) where state = 'live';
create index jobs_operation on {schema}.jobs (operation_id);
create index jobs_dead on {schema}.jobs (created_at) where state = 'dead';

-- The reaper: pending operations that nobody started.
create index keys_pending on {schema}.keys (last_run_at) where state = 'pending';
