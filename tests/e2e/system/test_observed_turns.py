"""Metrics, traces and logs of turns, in one process and in split mode."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from command_line import Outcome, run_command
from doubles.model_server import ModelServer
from doubles.otlp_collector import CollectedSpan, OtlpCollector, Trace
from doubles.script import Call, Reply, say
from live import LiveSystem
from prepared_folder import copy_prepared_folder
from scraping import Scrape, scrape
from strata.shared.metric_names import DATABASE_POOL_SIZE, MODEL_CALLS, RPC_REQUESTS, TRACE_SPANS
from strata.standalone.compose.services import ALL_SERVICES, SERVICES
from strata.standalone.data_folder import DataFolder
from whole_system import System

STORING = {spec.name for spec in SERVICES}
EXECUTE_RUN = "/strata.api.agent_loop.v1.TurnService/ExecuteRun"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
SECRET = "a-word-that-no-operator-may-see"
TOP = ("--interval", "0.2", "--data")
CALLS = (
    Call("memory_insert", {"label": "human", "new_str": SECRET}),
    Call("conversation_search", {"query": SECRET}),
)


async def turn_over_http(strata: LiveSystem, system: System, agent: str, **headers: str) -> str:
    """Runs a turn at the announced HTTP port; returns the reply."""
    runtime = DataFolder(strata.data).running()
    assert runtime is not None
    assert f"HTTP: {runtime.http_url}" in strata.log
    body = {"model": agent, "messages": [{"role": "user", "content": SECRET}]}
    async with httpx2.AsyncClient(base_url=f"{runtime.http_url}/v1", timeout=60.0) as client:
        headers["x-api-key"] = system.key
        response = await client.post("/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


async def scrapes(strata: LiveSystem) -> dict[str, Scrape]:
    """Returns the metrics of each process by name."""
    listed = json.loads((strata.data / "metrics-targets.json").read_text())
    return {
        entry["labels"]["process"]: await scrape(f"http://{target}")
        for entry in listed
        for target in entry["targets"]
    }


def services_with_connections(read: Scrape) -> set[str]:
    return {sample.labels["service"] for sample in read.matching(DATABASE_POOL_SIZE)}


@dataclass
class Observed:
    """Everything that was observed of three turns.

    Attributes:
        split: Whether each service had its own process.
        replies: The replies of the turns.
        metrics: The metrics of each process after the second turn.
        collector: The exported spans. The client samples the second turn but not the first;
            during the third turn the collector is down.
        top: Output of `strata top --once` after the second turn.
        log: Output of the processes, at level DEBUG.
        key: The API key of the client.
        exit_code: Exit code of the main process.
    """

    split: bool
    replies: list[str] = field(default_factory=list)
    metrics: dict[str, Scrape] = field(default_factory=dict)
    collector: OtlpCollector = field(default_factory=OtlpCollector)
    top: Outcome | None = None
    log: str = ""
    key: str = ""
    exit_code: int | None = None

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The log lines, without the notices that `strata up` prints for people."""
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    @property
    def trace(self) -> Trace:
        """The trace of the second turn."""
        return self.collector.trace(TRACE)


async def observe(folder: Path, *, split: bool) -> Observed:
    seen = Observed(split)
    sampled = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    async with ModelServer() as model:
        model.script(say("Untraced."), Reply(calls=CALLS), say("Traced."), say("Alone."))
        async with seen.collector as collector:
            environment = {
                "STRATA_TRACES_ENDPOINT": collector.url,
                "STRATA_TRACES_SAMPLE_RATIO": "0",
            }
            strata = LiveSystem(
                folder / "data",
                model,
                split=split,
                environment=environment,
                log_level="DEBUG",
                log_format="json",
            )
            try:
                system = await strata.start_system()
                agent = (await system.make_agent()).name
                seen.replies.append(await turn_over_http(strata, system, agent))
                seen.replies.append(await turn_over_http(strata, system, agent, **sampled))
                await collector.ended("invoke_agent")
                seen.metrics = await scrapes(strata)
                seen.top = await run_command("top", "--once", *TOP, str(strata.data))
                # Every process has sent its batch of spans, or sends it within one interval.
                await all_services(collector)
            except BaseException:
                await strata.close()
                raise
        try:
            seen.replies.append(await turn_over_http(strata, system, agent, **sampled))
            await system.channel.close()
            seen.exit_code = await strata.stop()
            seen.log = strata.log
            for file in (strata.data / "logs").glob("*.log"):
                seen.log += file.read_text()
            seen.key = system.key
        finally:
            await strata.close()
    return seen


async def all_services(collector: OtlpCollector) -> None:
    """Waits until the spans of every process were received, the server's spans among them."""
    async with asyncio.timeout(20):
        while missing(collector.trace(TRACE)):
            await collector.request()


def missing(trace: Trace) -> list[CollectedSpan]:
    """Returns the calls between services of which only the caller's side was received."""
    served = {span.parent_id for span in trace.spans if span.kind == "SERVER"}
    calls = [
        span for span in trace.spans if span.kind == "CLIENT" and "rpc.system" in span.attributes
    ]
    return [span for span in calls if span.span_id not in served]


@pytest.fixture(scope="module", params=[False, True], ids=["one process", "split"])
def observed(
    request: pytest.FixtureRequest, open_folder_of_module: Path, prepared_folder: Path
) -> Observed:
    folder = open_folder_of_module / ("split" if request.param else "single")
    folder.mkdir(mode=0o755)
    copy_prepared_folder(prepared_folder, folder / "data")
    return asyncio.run(observe(folder, split=request.param))


def test_turns_over_http_are_in_the_metrics_of_their_processes(observed: Observed) -> None:
    read = observed.metrics
    if observed.split:
        assert read.keys() == {spec.name for spec in ALL_SERVICES}
        assert all(services_with_connections(read[name]) == {name} for name in STORING)
    else:
        assert read.keys() == {"strata"}
        assert services_with_connections(read["strata"]) == STORING
    loop = read["agent_loop" if observed.split else "strata"]
    assert loop.total(MODEL_CALLS, outcome="ok") == 3
    assert loop.total(RPC_REQUESTS, method=EXECUTE_RUN) == 2
    assert read["gateway" if observed.split else "strata"].total(TRACE_SPANS, outcome="exported")


def test_the_view_of_top_has_every_service(observed: Observed) -> None:
    assert observed.top is not None
    assert (observed.top.code, observed.top.err) == (0, "")
    first_cells = {line.partition("\t")[0] for line in observed.top.out.splitlines()}
    assert {"Runs, 0 in the queue", "foreground", "openai/test-model"} <= first_cells
    assert {"messages", "passages", "memory_insert"} <= first_cells
    assert {*STORING, *(f"{name} service" for name in STORING)} <= first_cells


def test_a_turn_is_one_trace_through_all_services(observed: Observed) -> None:
    trace = observed.trace
    [root] = trace.roots
    assert (root.parent_id, root.name) == (SPAN, "POST /v1/chat/completions"), trace.picture()
    assert root.attributes["http.response.status_code"] == 200
    assert Counter(span.service for span in trace.spans).keys() == {*STORING}, trace.picture()
    [run] = trace.named("invoke_agent", "gateway")
    assert root in trace.ancestors(run)
    [turn] = [span for span in trace.named(EXECUTE_RUN[1:]) if span.kind == "SERVER"]
    assert (turn.service, run in trace.ancestors(turn)) == ("agent_loop", True)
    models = trace.named("chat test-model", "agent_loop")
    assert [span.parent_id for span in models] == [turn.span_id, turn.span_id]
    assert [span.attributes["gen_ai.response.finish_reasons"] for span in models] == [
        ["tool_calls"],
        ["stop"],
    ]
    for tool, service, statement in (
        ("memory_insert", "core_memory", "UPDATE core_memory.blocks"),
        ("conversation_search", "recall", "SELECT recall.messages"),
    ):
        [call] = trace.named(f"execute_tool {tool}", "tool_execution")
        assert turn in trace.ancestors(call)
        statements = [
            span for span in trace.spans if call in trace.ancestors(span) and statement in span.name
        ]
        assert {span.service for span in statements} == {service}, trace.picture()
        assert all(span.attributes["db.system.name"] == "postgresql" for span in statements)
    assert [span.name for span in trace.spans if span.failed] == []
    assert all(run.start_ns <= span.start_ns <= span.end_ns for span in models)


def test_each_call_between_services_has_both_sides(observed: Observed) -> None:
    assert missing(observed.trace) == []


def test_spans_contain_no_message_text_and_no_key(observed: Observed) -> None:
    assert observed.collector.raw
    assert SECRET.encode() not in observed.collector.raw
    assert b"strata_" not in observed.collector.raw


def test_a_turn_that_is_not_sampled_exports_nothing(observed: Observed) -> None:
    assert {span.trace_id for span in observed.collector.spans} == {TRACE}
    assert len(observed.trace.named("invoke_agent")) == 1


def test_a_turn_without_its_collector_succeeds(observed: Observed) -> None:
    assert observed.replies == ["Untraced.", "Traced.", "Alone."]
    assert observed.exit_code == 0
    assert "Traceback" not in observed.log


def test_lines_of_the_log_carry_trace_run_and_project(observed: Observed) -> None:
    calls = [line for line in observed.lines if line["event"] == "rpc"]
    [run] = observed.trace.named("invoke_agent")
    of_run = [line for line in calls if line.get("run_id") == run.attributes["strata.run.id"]]
    methods = {line["method"].rpartition("/")[2] for line in of_run}
    assert {"ExecuteRun", "BeginTurn", "ExecuteTools", "EditBlock", "CommitStep"} <= methods
    spans = {span.span_id for span in observed.trace.spans}
    for line in of_run:
        assert (line["trace_id"], line["level"]) == (TRACE, "debug")
        assert line["project_id"] == run.attributes["strata.project.id"]
        assert line["span_id"] in spans


def test_the_log_contains_no_message_text_and_no_key_even_at_debug(observed: Observed) -> None:
    assert observed.lines
    assert SECRET not in observed.log
    assert observed.key not in observed.log
