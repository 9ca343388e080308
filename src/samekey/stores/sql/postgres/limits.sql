-- Limits per tenant on new keys.

-- name: count_new_key
-- One more new key in this minute; gives how many there are.
insert into {limits} as l (tenant, minute, used) values (:tenant::text, {now} / 60000, 1)
on conflict (tenant) do update set
    used = case when l.minute = excluded.minute then l.used + 1 else 1 end, minute = excluded.minute
returning used, {now}

-- name: count_active_keys
-- How many keys a tenant has, counted no further than the limit. Its scopes share a prefix in the primary key.
select count(*)::bigint from (
    select 1 from {keys} where scope >= :first_scope::text and scope < :last_scope::text limit :limit::bigint
) as counted
