"""An in-memory journal, and simulated crashes of its process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strata.agent_loop.domain.run.journal import JournalKey, NestedRecord, StepRecord
from strata.agent_loop.domain.tools import ToolResult
from strata.protocol.errors import AbortedError, Reason
from strata.shared.tool_catalogue import ToolEffect


class Died(BaseException):
    """Simulates the death of the process."""


class Fate:
    """Counts calls to ports and simulates a crash at one of them."""

    def __init__(self) -> None:
        self.calls = 0
        self.last: int | None = None

    def step(self) -> None:
        """Counts a call; raises `Died` after the last one."""
        self.calls += 1
        if self.last is not None and self.calls > self.last:
            raise Died


def stale() -> AbortedError:
    return AbortedError("stale", reason=Reason.STALE_ATTEMPT)


class Journal:
    """A journal with the fence of the real one."""

    def __init__(self, fate: Fate) -> None:
        self.rows: dict[str, tuple[int, StepRecord | None]] = {}
        self.finishing: dict[str, int] = {}
        self.opened = 0
        self._fate = fate

    async def mark_finishing(self, key: JournalKey, seconds: float) -> None:
        if self.rows.get(key.run_id, (0, None))[0] > key.attempt:
            raise stale()
        if seconds:
            self.finishing[key.run_id] = key.attempt
        else:
            self.finishing.pop(key.run_id, None)

    async def is_finishing(self, key: JournalKey) -> bool:
        return self.finishing.get(key.run_id, key.attempt) < key.attempt

    async def resume(self, key: JournalKey, step: int | None) -> StepRecord | None:
        self._fate.step()
        attempt, record = self.rows.get(key.run_id, (0, None))
        if attempt > key.attempt:
            raise stale()
        self.rows[key.run_id] = (key.attempt, record)
        return record if record is not None and step in (None, record.step) else None

    async def close(self, key: JournalKey) -> StepRecord | None:
        self._fate.step()
        _, record = self.rows.get(key.run_id, (0, None))
        self.rows[key.run_id] = (2**31 - 1, record)
        return record

    async def open_step(self, key: JournalKey, record: StepRecord) -> None:
        self._fate.step()
        if self.rows.get(key.run_id, (0, None))[0] > key.attempt:
            raise stale()
        self.rows[key.run_id] = (key.attempt, record)
        self.opened += 1
        self._fate.step()

    async def nest(
        self, key: JournalKey, step: int, record: NestedRecord, position: int, effect: ToolEffect
    ) -> None:
        self._fate.step()
        attempt, opened = self.rows[key.run_id]
        if attempt != key.attempt or opened is None or opened.step != step:
            raise stale()
        self.rows[key.run_id] = (attempt, replace(opened, nested=(*opened.nested, record)))
        self._fate.step()

    async def record(self, key: JournalKey, step: int, results: Sequence[ToolResult]) -> None:
        self._fate.step()
        attempt, record = self.rows[key.run_id]
        if attempt != key.attempt or record is None or record.step != step:
            raise stale()
        by_call = {r.tool_return.tool_call_id: r for r in results}
        nested = tuple(
            replace(record_, result=by_call.pop(record_.call.id, record_.result))
            for record_ in record.nested
        )
        known = {**record.results, **by_call}
        self.rows[key.run_id] = (attempt, replace(record, results=known, nested=nested))
        self._fate.step()
