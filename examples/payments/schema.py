"""The tables, made when a process starts. Any number of processes may start at once.

The id of a payment, refund, purchase, order or transfer is the id of the operation that makes it: one
operation, one row, whatever is tried how often.
"""

from samekey import Idempotency

from .database import Database

STOCK = {"coffee": 1_000_000, "tea": 1_000_000, "cake": 12}

_TABLES = """
create table if not exists payments (
    number {serial},
    id {text} not null unique,
    account {text} not null,
    amount bigint not null,
    currency {text} not null,
    reference {text} not null,
    status {text} not null check (status in ('pending', 'succeeded', 'declined')),
    provider_id {text},
    refunded bigint not null default 0,
    check (refunded between 0 and amount)
);
create table if not exists refunds (
    number {serial},
    id {text} not null unique,
    account {text} not null,
    payment {text} not null,
    amount bigint not null,
    reference {text} not null,
    status {text} not null check (status in ('pending', 'succeeded', 'declined')),
    provider_id {text},
    foreign key (payment) references payments (id)
);
create table if not exists purchases (
    number {serial},
    id {text} not null unique,
    account {text} not null,
    card {text} not null,
    amount bigint not null,
    reference {text} not null,
    status {text} not null check (status in ('pending', 'succeeded', 'declined')),
    authorisation {text},
    provider_id {text}
);
create table if not exists transfers (
    number {serial},
    id {text} not null unique,
    account {text} not null,
    beneficiary {text} not null,
    amount bigint not null,
    reference {text} not null,
    status {text} not null check (status in ('pending', 'succeeded', 'declined')),
    provider_id {text}
);
create table if not exists orders (
    number {serial},
    id {text} not null unique,
    account {text} not null,
    item {text} not null,
    quantity bigint not null,
    reference {text} not null
);
create table if not exists stock (item {text} primary key, quantity bigint not null check (quantity >= 0));
create index if not exists payments_of_account on payments (account, number);
create index if not exists refunds_of_payment on refunds (payment, number);
create index if not exists purchases_of_account on purchases (account, number);
create index if not exists transfers_of_account on transfers (account, number);
create index if not exists orders_of_account on orders (account, number)
"""


def prepare(database: Database, idempotency: Idempotency) -> None:
    """Makes what is not there: our tables, then samekey's."""
    dialect = database.dialect
    with dialect.alone() as execute:
        for statement in _TABLES.format(serial=dialect.serial, text=dialect.text).split(";\n"):
            execute(statement)
        for item, quantity in STOCK.items():
            row = f"values ('{item}', {quantity}) on conflict (item) do nothing"
            execute(f"insert into stock (item, quantity) {row}")
        if dialect.migrates:
            idempotency.migrate()
