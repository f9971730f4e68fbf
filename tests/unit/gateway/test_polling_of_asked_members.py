"""Intervals at which the runs of asked members are read during a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest

from strata.api.common.v1.run_event_pb2 import RunEvent, RunFinished, ToolStarted
from strata.gateway.groups import asked_members
from strata.gateway.runs.domain.chains import AskedRun
from strata.shared.tool_catalogue import ASK_MEMBERS


class Runs:
    """The run of an agent whose call lasts until `may_end`, without runs of asked members."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def asked(self, _project_id: str, _run_id: str) -> Sequence[AskedRun]:
        return []

    async def follow(self, *_: object, **__: object) -> AsyncGenerator[RunEvent, None]:
        yield RunEvent(tool_started=ToolStarted(tool_call_id="call-1", name=ASK_MEMBERS))
        await self.may_end.wait()
        yield RunEvent(run_finished=RunFinished())


async def test_a_long_call_is_checked_at_increasing_intervals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, pauses = Runs(), []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 30:
            runs.may_end.set()
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    members = asked_members.AskedMembers(
        cast("Any", runs), cast("Any", runs), "project", "run-1", []
    )
    async with asyncio.timeout(20):
        events = [event async for _, event in members.events()]
    assert len(events) == 2
    assert pauses[:2] == [0.1, pytest.approx(0.15)]
    assert pauses[29] == 2.0
