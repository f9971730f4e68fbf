"""Hanging lookups delay only their own project."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from loop_time import put_forward
from polling import settle
from strata.shared.context import Caller, RequestContext, use
from strata.shared.web.errors import FetchError
from strata.shared.web.resolver import SystemResolver
from strata.shared.web.url_guard import Guard, parse_url

TIMEOUT_S = 60.0
ENTRY = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 443))


class NameServer:
    """Replaces `socket.getaddrinfo`: names that begin with "hang" get no answer."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        if host.startswith("hang"):
            self.released.wait(30)
        return [ENTRY]


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server)
    yield server
    server.released.set()


@pytest.fixture
def resolver(name_server: NameServer) -> Iterator[SystemResolver]:
    resolver = SystemResolver(timeout_s=TIMEOUT_S)
    yield resolver
    resolver.close()


async def resolve(resolver: SystemResolver, project_id: str, host: str) -> list[str]:
    with use(RequestContext(Caller("", project_id, "key"))):
        return await resolver(host, 443)


async def outcomes_in_time(*look_ups: Coroutine[Any, Any, Any]) -> list[Any]:
    """Returns the results and errors of look-ups; those that hang time out."""
    outcomes = asyncio.gather(*look_ups, return_exceptions=True)
    await settle()
    put_forward(TIMEOUT_S + 1)
    return await outcomes


async def test_hanging_names_of_one_project_do_not_delay_another_project(
    resolver: SystemResolver,
) -> None:
    names = [f"hang{number}.example" for number in range(100)]
    outcomes = await outcomes_in_time(*(resolve(resolver, "noisy", name) for name in names))
    assert {type(outcome) for outcome in outcomes} == {TimeoutError}
    # The threads of these names are still in use.
    [outcome] = await outcomes_in_time(resolve(resolver, "noisy", "well.example"))
    assert type(outcome) is TimeoutError
    assert await resolve(resolver, "quiet", "well.example") == ["93.184.216.34"]


async def test_threads_are_reused_after_a_hanging_lookup_returns(
    resolver: SystemResolver, name_server: NameServer
) -> None:
    hanging = [resolve(resolver, "noisy", f"hang{number}.example") for number in range(8)]
    await outcomes_in_time(*hanging)
    name_server.released.set()
    assert await resolve(resolver, "noisy", "well.example") == ["93.184.216.34"]
    # Look-ups whose callers had been cancelled were not started.
    assert len(name_server.asked) < 9


async def test_a_name_without_an_answer_is_a_fetch_error(resolver: SystemResolver) -> None:
    guard = Guard(resolver)
    [error] = await outcomes_in_time(guard.resolve(parse_url("https://hang.example/")))
    assert isinstance(error, FetchError)
    assert "gave no address of hang.example in time" in str(error)
