"""Harnesses with a full window."""

from __future__ import annotations

from unit.agent_loop.loop.loop_harness import LoopHarness
from unit.agent_loop.loop.model_replies import reply


async def filled(turns: int = 12, window: int = 4096, size: int = 400) -> LoopHarness:
    """Returns a harness whose next turn may have to compact the window."""
    harness = LoopHarness(window_tokens=window)
    for number in range(turns):
        await harness.run(harness.request(f"Question {number} " + "q" * size), reply("a" * size))
    return harness


async def full() -> LoopHarness:
    """Returns a harness whose next turn must compact the window."""
    harness = await filled(8)
    while not harness.recall.swaps:
        before = [*harness.recall.messages], harness.recall.revision, dict(harness.recall.log)
        await harness.run(harness.request("more " + "q" * 400), reply("a" * 400))
    harness.recall.swaps.clear()
    harness.recall.messages, harness.recall.revision, harness.recall.log = before
    harness.recall.hidden = 0
    harness.model.summarised.clear()
    return harness
