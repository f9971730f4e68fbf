"""`ExplainRun` divides the time of a real run between its parts, such as tool and compaction."""

from __future__ import annotations

import pytest

from doubles.script import call, overflow, say
from strata.api.common.v1 import message_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROUNDING_MS = 2
"""Tolerance: two times are truncated to milliseconds."""


async def test_parts_of_a_run_with_a_tool_and_a_compaction_add_up(system: System) -> None:
    agent = await system.make_agent("openai/test-model")
    long = "word " * 400
    for number in range(3):
        system.model.script(say(f"{long} {number}"))
        await system.send(agent, f"Tell me story {number}. {long}")
    system.model.script(
        call("memory_insert", {"label": "human", "new_str": "Likes tea."}),
        overflow("openai"),
        say("- Stories were told."),
        say("In short: yes."),
    )

    ran = await system.send(agent, "I like tea. And the moral?")

    explained = await system.runs.ExplainRun(run_pb.ExplainRunRequest(run_id=ran.run_id))
    order = ["model", "tool", "model", "compaction", "model"]
    main = [span for span in explained.spans if span.kind in order]
    assert [span.kind for span in main] == order
    assert [span.step for span in main] == [1, 1, 2, 2, 2]
    assert (main[1].name, main[1].status) == ("memory_insert", message_pb2.TOOL_STATUS_OK)
    assert main[3].usage.total_tokens > 0
    assert {"wait", "begin", "compile", "commit"} >= {
        span.kind for span in explained.spans if span.kind not in order
    }
    assert sum(span.share_ms for span in explained.spans) == explained.total_ms
    assert sum(part.share_ms for part in explained.parts) == explained.total_ms
    run = explained.run
    whole = run.finish_time.ToMilliseconds() - run.create_time.ToMilliseconds()
    assert explained.total_ms <= whole + ROUNDING_MS
    starts = [span.start_time.ToMicroseconds() for span in explained.spans]
    assert starts == sorted(starts)
    spent = sum(span.usage.total_tokens for span in explained.spans)
    assert spent == run.usage.total_tokens

    steps = await system.runs.ListSteps(run_pb.ListStepsRequest(run_id=ran.run_id))
    assert [(s.step, s.model_calls, list(s.tools)) for s in steps.steps] == [
        (1, 1, ["memory_insert"]),
        (2, 2, []),
    ]
