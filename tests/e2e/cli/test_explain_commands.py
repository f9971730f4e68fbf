"""Output of ``strata runs explain`` and ``strata runs steps``."""

from __future__ import annotations

import json

from command_line import Run
from e2e.cli.scripted import ScriptedGateway
from strata.api.common.v1 import message_pb2, usage_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.shared.ids import new_id

RUN = new_id("run")
USAGE = usage_pb2.Usage(prompt_tokens=1200, completion_tokens=34, total_tokens=1234)


async def test_run_is_explained_part_by_part(strata: Run, gateway: ScriptedGateway) -> None:
    gateway.runs.explained = pb.ExplainRunResponse(
        run=pb.Run(id=RUN, usage=USAGE),
        spans=[
            pb.RunSpan(kind="wait", name="queue", duration_ms=5, share_ms=5),
            pb.RunSpan(
                kind="model",
                name="test/one",
                step=1,
                duration_ms=1500,
                share_ms=1500,
                first_token_ms=250,
                usage=USAGE,
                cost_micros=2672,
                attempt=2,
                note="The reply \x1b[31mbroke off.",
            ),
            pb.RunSpan(
                kind="tool",
                name="search",
                step=1,
                duration_ms=600,
                share_ms=495,
                status=message_pb2.TOOL_STATUS_FAILED,
            ),
        ],
        parts=[pb.RunPart(kind="model", count=1, share_ms=1500)],
        total_ms=2000,
        cost_micros=2672,
        models=[
            pb.ModelUsage(model="test/one", calls=1),
            pb.ModelUsage(
                model="test/two",
                calls=2,
                usage=usage_pb2.Usage(
                    prompt_tokens=1000,
                    total_tokens=1034,
                    completion_tokens=34,
                    cached_input_tokens=750,
                ),
            ),
        ],
    )
    done = await strata("runs", "explain", RUN)
    assert done.code == 0, done
    assert [line.split("\t") for line in done.out.splitlines()] == [
        ["STEP", "WHAT", "TIME", "SHARE", "TOKENS", "COST", "NOTES"],
        ["", "wait queue", "0.005 s", "0%", "", "", ""],
        [
            "1",
            "model test/one",
            "1.500 s",
            "75%",
            "1,200 in, 34 out",
            "0.002672",
            "first token after 0.250 s; attempt 2; The reply [31mbroke off.",
        ],
        ["1", "tool search", "0.600 s", "25%", "", "", "failed"],
    ]
    expected = "2.000 s in all: model 1.500 s; 1,200 in, 34 out; cost 0.002672"
    assert expected in done.err
    assert "test/one: 1 call;" in done.err
    by_two = "test/two: 2 calls, 1,000 in, 34 out, 75% of the input from the prompt cache"
    assert by_two in " ".join(done.err.split())
    document = json.loads((await strata("runs", "explain", RUN, "--json")).out)
    assert document["spans"][1]["costMicros"] == "2672"


async def test_steps_are_listed(strata: Run, gateway: ScriptedGateway) -> None:
    gateway.runs.steps = [
        pb.RunStep(
            step=1,
            share_ms=1995,
            parts=[pb.RunPart(kind="model", count=1, share_ms=1500)],
            usage=USAGE,
            model="test/one",
            tools=["search", "search"],
        )
    ]
    done = await strata("runs", "steps", RUN)
    assert done.code == 0, done
    assert done.out.splitlines()[1].split("\t") == [
        "1",
        "1.995 s",
        "model 1.500 s",
        "",
        "1,200 in, 34 out",
        "",
        "test/one",
        "search, search",
    ]
