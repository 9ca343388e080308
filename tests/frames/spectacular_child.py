"""A process of its own for REST framework's page: a request that is built from it alone is sent, twice.

python -m tests.frames.spectacular_child URL
"""

from __future__ import annotations

import json
import sys
from typing import Any

from examples.shop.orm import migrate


def main(url: str) -> None:
    migrate(url, "examples.shop.drf.urls", "rest_framework", "drf_spectacular")
    from django.conf import settings
    from django.test import Client

    settings.REST_FRAMEWORK["DEFAULT_SCHEMA_CLASS"] = "drf_spectacular.openapi.AutoSchema"
    settings.SPECTACULAR_SETTINGS = {"POSTPROCESSING_HOOKS": ["samekey.openapi.spectacular"]}
    from drf_spectacular.generators import SchemaGenerator

    from tests.frames.test_openapi import built, must_be_valid

    generator: Any = SchemaGenerator  # untyped
    document = json.loads(json.dumps(generator().get_schema(public=True)))
    must_be_valid(document)
    request = built(document, "/orders")
    assert request["headers"].keys() == {"Idempotency-Key", "Authorization"}
    assert request["headers"]["Authorization"] == "Bearer demo"
    assert {"400", "409", "422", "503"} <= document["paths"]["/orders"]["post"]["responses"].keys()
    first, again = (
        Client().post("/orders", request["json"], "application/json", headers=request["headers"])
        for _ in range(2)
    )
    assert (first.status_code, first.content) == (201, again.content), first.content
    assert again["Idempotent-Replayed"] == "true"
    assert len(Client().get("/orders", headers=request["headers"]).json()) == 1
    print("sent")


if __name__ == "__main__":
    main(sys.argv[1])
