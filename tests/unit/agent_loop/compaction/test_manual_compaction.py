"""Manual compaction."""

from __future__ import annotations

import pytest

from strata.agent_loop.compaction.manual_compaction import ManualCompaction
from strata.agent_loop.context.inspection import NextRequest
from strata.agent_loop.domain.ports import BoundModel, MemorySection
from strata.protocol.errors import AbortedError, FailedPreconditionError, Reason
from strata.shared.metric_names import COMPACTION_SECONDS, COMPACTIONS
from unit.agent_loop.loop.loop_harness import LoopHarness
from unit.agent_loop.loop.model_replies import reply


def by_hand(harness: LoopHarness, bound: BoundModel | None) -> ManualCompaction:
    async def inspect(agent_id: str, conversation_id: str) -> NextRequest:
        window = await harness.recall.get_window(conversation_id)
        tools, section = harness.tools.toolset, MemorySection("", None)
        return NextRequest(harness.agent, window, window.messages, tools, bound, section)

    ports = harness.ports
    return ManualCompaction(
        inspect, ports.models, ports.recall, ports.tokens, ports.clock, ports.telemetry
    )


async def test_without_a_model_nothing_is_compacted() -> None:
    harness = LoopHarness()
    with pytest.raises(FailedPreconditionError) as raised:
        await by_hand(harness, None).compact(harness.agent.id, "conversation-1")
    assert raised.value.reason is Reason.MODEL_NOT_CONFIGURED


async def test_conversation_that_changes_at_every_attempt_is_an_error() -> None:
    harness = LoopHarness()
    for number in range(8):
        await harness.run(harness.request(f"{number} " + "q" * 400), reply("a" * 400))

    def move() -> None:
        harness.recall.revision += 1

    bound = BoundModel(harness.model, harness.models.settings)
    harness.recall.on_swap = move
    with pytest.raises(AbortedError) as raised:
        await by_hand(harness, bound).compact(harness.agent.id, "conversation-1")
    assert raised.value.reason is Reason.REVISION_MISMATCH
    assert harness.ports.telemetry.total(COMPACTIONS) == 0
    harness.recall.on_swap = lambda: None
    freed = await by_hand(harness, bound).compact(harness.agent.id, "conversation-1")
    assert freed.summary is not None
    assert freed.tokens_after < freed.tokens_before
    assert harness.ports.telemetry.total(COMPACTIONS) == 1
    assert harness.ports.telemetry.histogram(COMPACTION_SECONDS).count == 1
