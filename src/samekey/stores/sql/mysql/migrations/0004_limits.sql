-- min_compatible: 1
-- New keys per tenant in the running minute. Written only where such a limit is set.
create table if not exists samekey_limits (
    tenant varbinary(512) not null,
    minute bigint not null,
    used   bigint not null,
    primary key (tenant)
) engine = InnoDB row_format = dynamic;
