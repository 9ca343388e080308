-- The keys. One row is one operation; (scope, key) is its identity. Every statement of a migration may be run
-- again: DDL commits by itself, so a migration that is cut short begins anew.
-- Times are milliseconds since 1970 by this database's clock.
-- Text is kept as bytes (UTF-8): no collation makes two keys one, no connection's character set changes any.
create table if not exists samekey_keys (
    scope               varbinary(1536) not null,
    `key`               varbinary(1024) not null,
    id                  varbinary(128) not null,
    tenant              varbinary(512) not null,
    endpoint            varbinary(1024) not null,
    fingerprint         tinyblob not null,
    fingerprint_version varbinary(255) not null,
    state               varbinary(32) not null,
    mode                varbinary(32) not null,
    attempt             varbinary(255) not null,
    attempts            bigint not null,
    recovery_point      varbinary(1024),
    locked_until        bigint,
    answer_version      bigint,
    answer_status       bigint,
    answer_headers      longblob,
    answer_body         longblob,
    error_code          varbinary(1024),
    downstream          varbinary(128),
    provider_id         varbinary(1024),
    reconcile_after     bigint,
    created_at          bigint not null,
    last_run_at         bigint not null,
    completed_at        bigint,
    expires_at          bigint not null,
    reconcile_tries     bigint not null default 0,
    -- What the last change was signed with, for whoever made it to see that it did.
    mark                varbinary(16),
    primary key (scope, `key`),
    -- What domain tables reference (on delete set null) and what the status resource shows.
    unique key samekey_keys_id (id),
    -- The sweeper and the completer: set while somebody holds the lease, and null otherwise.
    key samekey_keys_lease (locked_until),
    -- The reaper, in its order; the few that must not be deleted are passed over.
    key samekey_keys_expiry (expires_at),
    -- The reconciler: set while the outcome is unknown.
    key samekey_keys_reconcile (reconcile_after),
    -- Pending operations that nobody started, and what the machine gave up on.
    key samekey_keys_state (state, last_run_at),
    -- A record by what the provider knows of it.
    key samekey_keys_downstream (downstream),
    key samekey_keys_provider (provider_id)
) engine = InnoDB row_format = dynamic;
