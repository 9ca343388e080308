-- min_compatible: 1
-- New keys per tenant in the running minute. Written only where such a limit is set.
create table {schema}.limits (
    tenant text collate "C" primary key,
    minute bigint not null,
    used   bigint not null
);
