-- min_compatible: 1
-- What operators need: who changed what and why, and evidence from providers.

-- Every transition of every key, append-only. It outlives the key.
create table if not exists samekey_audit (
    id           bigint not null auto_increment,
    at           bigint not null,
    operation_id varbinary(128) not null,
    scope        varbinary(1536) not null,
    `key`        varbinary(1024) not null,
    tenant       varbinary(512) not null,
    from_state   varbinary(32),
    to_state     varbinary(32),
    attempt      varbinary(255),
    actor        varbinary(1024) not null,
    reason       longtext character set utf8mb4 collate utf8mb4_bin,
    primary key (id),
    key samekey_audit_key (scope, `key`, id),
    key samekey_audit_operation (operation_id)
) engine = InnoDB row_format = dynamic;

-- Events of providers, kept once each by their id; those that came too early wait here.
create table if not exists samekey_evidence (
    event_id     varbinary(1024) not null,
    operation_id varbinary(128),
    outcome      longblob not null,
    applied      bigint not null,
    received_at  bigint not null,
    mark         varbinary(16),
    primary key (event_id),
    key samekey_evidence_operation (operation_id)
) engine = InnoDB row_format = dynamic;

-- Triggers, so that nothing can change a state without leaving its trace. Who acts is a variable of the session
-- (operator.sql); without one it is a request.
create trigger if not exists samekey_note_new after insert on samekey_keys for each row insert into samekey_audit (at, operation_id, scope, `key`, tenant, from_state, to_state, attempt, actor, reason) values (timestampdiff(microsecond, '1970-01-01 00:00:00', utc_timestamp(3)) div 1000, new.id, new.scope, new.`key`, new.tenant, null, new.state, new.attempt, coalesce(@samekey_actor, 'request'), coalesce(@samekey_reason, convert(new.error_code using utf8mb4)));

create trigger if not exists samekey_note_change after update on samekey_keys for each row begin if not (old.state <=> new.state and old.attempt <=> new.attempt) then insert into samekey_audit (at, operation_id, scope, `key`, tenant, from_state, to_state, attempt, actor, reason) values (timestampdiff(microsecond, '1970-01-01 00:00:00', utc_timestamp(3)) div 1000, new.id, new.scope, new.`key`, new.tenant, old.state, new.state, new.attempt, coalesce(@samekey_actor, 'request'), coalesce(@samekey_reason, convert(new.error_code using utf8mb4))); end if; end;

create trigger if not exists samekey_note_end after delete on samekey_keys for each row insert into samekey_audit (at, operation_id, scope, `key`, tenant, from_state, to_state, attempt, actor, reason) values (timestampdiff(microsecond, '1970-01-01 00:00:00', utc_timestamp(3)) div 1000, old.id, old.scope, old.`key`, old.tenant, old.state, null, old.attempt, coalesce(@samekey_actor, 'request'), @samekey_reason);
