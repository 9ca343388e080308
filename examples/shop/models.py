"""The shop's table and its service in SQLModel, as applications have them: nothing in it is samekey's."""

from collections.abc import Sequence

from sqlmodel import Field, Session, SQLModel, select

from .bodies import Wanted


class Purchase(SQLModel, table=True):
    __tablename__ = "orders"

    id: int | None = Field(default=None, primary_key=True)
    account: str
    sku: str
    quantity: int


def write(session: Session, account: str, wanted: Wanted) -> Purchase:
    session.add(row := Purchase(account=account, **wanted.model_dump()))
    session.commit()
    session.refresh(row)
    return row


def listed(session: Session, account: str) -> Sequence[Purchase]:
    return session.exec(select(Purchase).where(Purchase.account == account).order_by("id")).all()
