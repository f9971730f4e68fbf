"""Helpers of the recall tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from strata.recall.domain.messages import Message
from strata.recall.store import PostgresWindowStore
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole

START = datetime(2026, 1, 1, tzinfo=UTC)


class Writer:
    """Stores messages a day apart in one conversation."""

    def __init__(self, database: Database, agent: str) -> None:
        self.windows = PostgresWindowStore(database)
        self.agent = agent
        self.conversation = new_id("conversation")
        self.day = 0

    async def open(self) -> None:
        system = Message(
            id=new_id("message"),
            role=MessageRole.SYSTEM,
            parts=({"type": "text", "text": "memory about dogs"},),
            create_time=START,
        )
        await self.windows.open(self.conversation, self.agent, [system], "english")

    async def say(
        self,
        text: str,
        role: MessageRole = MessageRole.USER,
        run: str = "",
        *parts: Any,
        at: datetime | None = None,
        name: str = "",
    ) -> Message:
        self.day += 1
        run = run or new_id("run")
        message = Message(
            id=new_id("message"),
            role=role,
            parts=({"type": "text", "text": text}, *parts) if text else tuple(parts),
            create_time=at or START + timedelta(days=self.day),
            name=name,
            run_id=run,
        )
        start = await self.windows.begin_turn(self.conversation, self.agent, run, 1, [message])
        return start.inputs[0]
