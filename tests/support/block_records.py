"""Blocks, and their changes through the block store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from strata.core_memory.domain.blocks import (
    Authorship,
    Block,
    EditorKind,
    NewBlock,
    Origin,
    made_block,
)
from strata.core_memory.domain.ports import Unit
from strata.core_memory.store.blocks import PostgresBlockStore
from strata.shared.idempotency.keys import RequestKey

NOW = datetime(2026, 11, 21, 20, 43, 9, 123456, tzinfo=UTC)
AUTHORSHIP = Authorship(
    "append",
    Origin(
        "agent-1", "run-1", "step-1", "call-1", "some-model", "because", EditorKind.SLEEPTIME_AGENT
    ),
    "key-1",
    NOW,
    base_revision=7,
)
ResultT = TypeVar("ResultT")


async def begin(store: PostgresBlockStore, agent: str) -> bool:
    return await store.mutate(RequestKey(), lambda unit: unit.begin_agent(agent))


def make(label: str = "human", value: str = "", **more: Any) -> Block:
    new = NewBlock(label, value, "About.", metadata=more.pop("metadata", {}))
    return replace(made_block(new, (), NOW), **more)


async def once(
    store: PostgresBlockStore,
    work: Callable[[Unit], Awaitable[ResultT]],
    request_id: str = "",
    digest: bytes = b"",
) -> ResultT:
    return await store.mutate(RequestKey(request_id, digest.hex()), work)


async def insert(
    store: PostgresBlockStore, block: Block, agent: str = "", made_for: str = "", request: str = ""
) -> Block:
    async def work(unit: Unit) -> None:
        await unit.check_request()
        await unit.insert(
            block, AUTHORSHIP, agent_id=agent, made_for=made_for, response=block.id.encode()
        )

    await once(store, work, request, b"same")
    return block


async def write(store: PostgresBlockStore, block: Block) -> None:
    await once(store, lambda unit: unit.update(block, AUTHORSHIP, response=b""))
