-- Limits per tenant on new keys; and whose keys these are.

-- name: lock_limits
-- A tenant's new keys come one after the other, until this transaction ends.
insert into {limits} (tenant, minute, used) values (:tenant, 0, 0)
on conflict (tenant) do update set used = {limits}.used

-- name: count_new_key
-- One more new key in this minute; gives how many there are.
insert into {limits} (tenant, minute, used) values (:tenant, {now} / 60000, 1)
on conflict (tenant) do update set
    used = case when {limits}.minute = excluded.minute then {limits}.used + 1 else 1 end, minute = excluded.minute
returning used, {now}

-- name: count_active_keys
-- How many keys a tenant has, counted no further than the limit. Its scopes share a prefix in the primary key.
select count(*) from (
    select 1 from {keys} where scope >= :first_scope and scope < :last_scope limit :limit
) as counted

-- name: identity
select minute, used from {limits} where tenant = '!identity'

-- name: note_identity
-- Whoever comes first, unless the tables were used without one; no tenant has such a name.
insert into {limits} (tenant, minute, used)
select '!identity', :first, :second
where not exists (select 1 from {keys}) and not exists (select 1 from {audit})
on conflict (tenant) do nothing
