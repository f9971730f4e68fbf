"""The worker of retention: one project neither stops nor delays the others."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from strata.protocol.errors import DeadlineExceededError, UnavailableError
from strata.recall.domain import retention_worker
from strata.recall.domain.messages import Cursor
from strata.recall.domain.retention import SweepResult
from strata.recall.domain.retention_worker import RetentionWorker
from strata.shared.clock import ManualClock

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class Messages:
    """Implements `OldMessages` by counts of deletable messages per agent ``project/name``."""

    def __init__(self, **agents: int) -> None:
        self.left = {name.replace("_", "/"): count for name, count in agents.items()}
        self.most = dict.fromkeys(self.left, 1000)
        self.order: list[str] = []

    async def projects(self, after: str, limit: int) -> Sequence[tuple[str, int]]:
        projects = sorted({name.split("/")[0] for name in self.left})
        return [(project, 30) for project in projects if project > after][:limit]

    async def agents(self, project_id: str, after: str, limit: int) -> Sequence[str]:
        of_project = sorted(name for name in self.left if name.startswith(f"{project_id}/"))
        return [name for name in of_project if name > after][:limit]

    async def sweep(
        self, project_id: str, agent_id: str, before: datetime, cursor: Cursor | None, limit: int
    ) -> SweepResult:
        if limit > self.most[agent_id]:
            raise DeadlineExceededError("a database statement took too long")
        deleted = min(limit, self.left[agent_id])
        self.left[agent_id] -= deleted
        self.order += [agent_id] * bool(deleted)
        return SweepResult(deleted, (NOW, "message") if deleted == limit else None)

    async def sweep_turns(
        self, project_id: str, agent_id: str, before: datetime, cursor: Cursor | None, limit: int
    ) -> SweepResult:
        return SweepResult(0, None)


def worker(messages: Messages, batch: int = 8) -> RetentionWorker:
    return RetentionWorker(messages, ManualClock(NOW), batch=batch, every=1)


async def test_agent_whose_deletion_times_out_does_not_block_other_agents_and_projects() -> None:
    messages = Messages(a_1=5, a_2=5, b_1=5)
    messages.most["a/1"] = 0
    assert await worker(messages).round() == 10
    assert messages.left == {"a/1": 5, "a/2": 0, "b/1": 0}


async def test_smaller_batches_are_deleted_after_a_time_out() -> None:
    messages = Messages(a_1=5)
    messages.most["a/1"] = 2
    assert await worker(messages).round() == 5


async def test_many_old_messages_of_one_project_do_not_delay_another_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention_worker, "_BATCHES_IN_TURN", 2)
    messages = Messages(a_1=9, b_1=1)
    assert await worker(messages, batch=2).round() == 10
    assert messages.order == ["a/1"] * 2 + ["b/1"] + ["a/1"] * 3


async def test_round_ends_when_the_database_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = Messages(a_1=1)

    async def unavailable(*_: object) -> SweepResult:
        raise UnavailableError("the database cannot be reached now")

    monkeypatch.setattr(messages, "sweep", unavailable)
    with pytest.raises(UnavailableError):
        await worker(messages).round()
