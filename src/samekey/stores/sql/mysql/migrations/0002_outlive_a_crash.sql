-- min_compatible: 1
-- What an operation needs to go on without its client: its input, its finished phases, its jobs.

-- The input of phased work, for the completer. Dropped when the operation completes.
create table if not exists samekey_inputs (
    operation_id varbinary(128) not null,
    name         varbinary(512) not null,
    version      bigint not null,
    payload      longblob not null,
    created_at   bigint not null,
    mark         varbinary(16),
    primary key (operation_id)
) engine = InnoDB row_format = dynamic;

-- The recovery points. An effect is written before its call (done = 0) and again after it (done = 1).
create table if not exists samekey_phases (
    operation_id varbinary(128) not null,
    position     bigint not null,
    name         varbinary(1024) not null,
    kind         varbinary(32) not null,
    done         bigint not null,
    result       longblob,
    provider_id  varbinary(1024),
    intent_at    bigint not null,
    done_at      bigint,
    mark         varbinary(16),
    primary key (operation_id, position)
) engine = InnoDB row_format = dynamic;

-- The outbox. A live job may be taken once due_at has come; taking it moves due_at by the lease.
create table if not exists samekey_jobs (
    id            varbinary(255) not null,
    operation_id  varbinary(128) not null,
    scope         varbinary(1536) not null,
    `key`         varbinary(1024) not null,
    tenant        varbinary(512) not null,
    name          varbinary(512) not null,
    payload       longblob not null,
    answers       bigint not null,
    state         varbinary(32) not null,
    attempt       varbinary(512),
    attempts      bigint not null,
    due_at        bigint not null,
    provider_id   varbinary(1024),
    error         longtext character set utf8mb4 collate utf8mb4_bin,
    created_at    bigint not null,
    first_run_at  bigint,
    done_at       bigint,
    mark          varbinary(16),
    primary key (id),
    key samekey_jobs_due (state, due_at),
    key samekey_jobs_operation (operation_id),
    key samekey_jobs_dead (state, created_at)
) engine = InnoDB row_format = dynamic;
