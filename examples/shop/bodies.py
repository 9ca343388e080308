"""What a request and an answer of the shop are, for frameworks that validate by pydantic's models."""

from pydantic import BaseModel, Field


class Wanted(BaseModel):
    sku: str = Field(min_length=1)
    quantity: int = Field(ge=1, strict=True)


class Order(Wanted):
    id: int
