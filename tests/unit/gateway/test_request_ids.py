"""The id of a request to the HTTP port."""

from __future__ import annotations

from typing import Any

import pytest

from strata.gateway.http.request_ids import RequestIds

ID = b"x-request-id"


async def exchanged(*headers: tuple[bytes, bytes]) -> tuple[list[bytes], list[bytes]]:
    """Sends a request; returns the ids that the application gets, and those of the response."""
    passed: list[bytes] = []
    sent: list[Any] = []

    async def application(scope: Any, _: Any, send: Any) -> None:
        passed.extend(value for name, value in scope["headers"] if name == ID)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    scope = {"type": "http", "headers": list(headers)}
    await RequestIds(application)(scope, receive, send)
    return passed, [value for name, value in sent[0]["headers"] if name == ID]


async def test_the_id_of_the_client_is_passed_on_and_returned() -> None:
    assert await exchanged((b"accept", b"*/*"), (ID, b"a-1")) == ([b"a-1"], [b"a-1"])


@pytest.mark.parametrize("headers", [(), ((ID, b"not an id"),), ((ID, b"\xff"),)])
async def test_without_a_valid_id_a_new_one_is_passed_on_and_returned(
    headers: tuple[tuple[bytes, bytes], ...],
) -> None:
    [passed], [returned] = await exchanged(*headers)
    assert passed == returned
    assert passed.startswith(b"req-")
