-- The keys. One row is one operation; (scope, key) is its identity.
-- Times are milliseconds since 1970 by this machine's clock.
create table samekey_keys (
    scope               text not null,
    key                 text not null,
    id                  text not null,
    tenant              text not null,
    endpoint            text not null,
    fingerprint         blob not null,
    fingerprint_version text not null,
    state               text not null,
    mode                text not null,
    attempt             text not null,
    attempts            integer not null,
    recovery_point      text,
    locked_until        integer,
    answer_version      integer,
    answer_status       integer,
    answer_headers      blob,
    answer_body         blob,
    error_code          text,
    downstream          text,
    provider_id         text,
    reconcile_after     integer,
    created_at          integer not null,
    last_run_at         integer not null,
    completed_at        integer,
    expires_at          integer not null,
    primary key (scope, key)
);

-- What domain tables reference (on delete set null) and what the status resource shows.
create unique index samekey_keys_id on samekey_keys (id);

-- The sweeper: leases that ran out.
create index samekey_keys_lease on samekey_keys (locked_until) where state = 'in_progress';
-- The reaper: settled records past retention.
create index samekey_keys_expiry on samekey_keys (expires_at)
    where state in ('completed', 'failed_retryable', 'expired');
-- The reconciler: outcomes to find out.
create index samekey_keys_reconcile on samekey_keys (reconcile_after) where state = 'unknown';
-- A record by what the provider knows of it.
create index samekey_keys_downstream on samekey_keys (downstream) where downstream is not null;
create index samekey_keys_provider on samekey_keys (provider_id) where provider_id is not null;
