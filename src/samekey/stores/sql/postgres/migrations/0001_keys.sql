-- The keys. One row is one operation; (scope, key) is its identity and its shard key.
-- Times are milliseconds since 1970 by this database's clock.
create table {schema}.keys (
    scope               text collate "C" not null,
    key                 text collate "C" not null,
    id                  text collate "C" not null,
    tenant              text not null,
    endpoint            text not null,
    fingerprint         bytea not null,
    fingerprint_version text not null,
    state               text not null,
    mode                text not null,
    attempt             text collate "C" not null,
    attempts            bigint not null,
    recovery_point      text,
    locked_until        bigint,
    answer_version      bigint,
    answer_status       bigint,
    answer_headers      bytea,
    answer_body         bytea,
    error_code          text,
    downstream          text collate "C",
    provider_id         text collate "C",
    reconcile_after     bigint,
    created_at          bigint not null,
    last_run_at         bigint not null,
    completed_at        bigint,
    expires_at          bigint not null,
    primary key (scope, key)
);

-- What domain tables reference (on delete set null) and what the status resource shows.
create unique index keys_id on {schema}.keys (id);

-- The sweeper: leases that ran out.
create index keys_lease on {schema}.keys (locked_until) where state = 'in_progress';
-- The reaper: settled records past retention.
create index keys_expiry on {schema}.keys (expires_at)
    where state in ('completed', 'failed_retryable', 'expired');
-- The reconciler: outcomes to find out.
create index keys_reconcile on {schema}.keys (reconcile_after) where state = 'unknown';
-- A record by what the provider knows of it.
create index keys_downstream on {schema}.keys (downstream) where downstream is not null;
create index keys_provider on {schema}.keys (provider_id) where provider_id is not null;
