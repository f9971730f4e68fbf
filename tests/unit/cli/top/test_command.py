"""`strata top` without a terminal."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console

from command_line import run_command
from polling import eventually
from strata.cli.commands.top import show_live
from strata.cli.failures import EXIT_UNREACHABLE, EXIT_USAGE
from strata.shared.http_listener import HttpListener
from strata.shared.metric_names import (
    DATABASE_CONNECTIONS_IN_USE,
    DATABASE_POOL_SIZE,
    INDEX_LAG_SECONDS,
    INDEX_WAITING,
    MODEL_CALLS,
    RPC_IN_FLIGHT,
    RPC_REQUESTS,
    RPC_SECONDS,
    RUNS_ACTIVE,
    RUNS_QUEUED,
    TOOL_CALLS,
)
from strata.shared.metrics_endpoint import metrics_application
from strata.shared.telemetry import Telemetry
from strata.standalone.ports import ReservedPort

RPC = "/strata.api.recall.v1.MessageService/ListMessages"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A metrics port with some values."""
    telemetry = Telemetry()
    telemetry.gauge(RUNS_ACTIVE, kind="foreground").set(3)
    telemetry.gauge(RUNS_QUEUED).set(12)
    telemetry.counter(RPC_REQUESTS, method=RPC, code="OK").inc(5)
    # Health checks are not in the rows of the services.
    telemetry.counter(RPC_REQUESTS, method=HEALTH_CHECK, code="OK").inc(7)
    telemetry.gauge(RPC_IN_FLIGHT, method=HEALTH_CHECK).set(1)
    telemetry.histogram(RPC_SECONDS, method=HEALTH_CHECK).observe(0.5)
    telemetry.counter(MODEL_CALLS, provider="openai", model="openai/\x1b[2Jx", outcome="ok").inc()
    telemetry.counter(TOOL_CALLS, type="custom", tool="", status="OK").inc()
    telemetry.gauge(INDEX_WAITING, collection="messages").set(40)
    telemetry.gauge(INDEX_LAG_SECONDS, collection="messages").set(2.5)
    telemetry.gauge(DATABASE_POOL_SIZE, service="recall", role="service").set(10)
    telemetry.gauge(DATABASE_CONNECTIONS_IN_USE, service="recall", role="service").set(4)
    listener = HttpListener(lambda _: metrics_application(telemetry, lambda: True), "127.0.0.1", 0)
    channel: object = None
    await listener.start(channel)  # type: ignore[arg-type]
    yield f"http://127.0.0.1:{listener.port}"
    await listener.stop()


async def test_one_view_without_a_terminal_is_separated_by_tabs(url: str) -> None:
    printed = await run_command("top", "--metrics", url, "--interval", "0.2")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out.splitlines() == [
        "Runs, 12 in the queue",
        "runs\tactive\tended/s\terrors/s\twait p95\ttime p95",
        "foreground\t3\t-\t-\t-\t-",
        "Services",
        "service\tcalls/s\tfailed/s\trunning\tslowest p95\tslowest method",
        "recall\t-\t-\t0\t-\t-",
        "Models",
        "model\tcalls/s\tnot ok/s\tretries/s\ttokens/s\tfirst p95\ttime p95",
        "openai/[2Jx\t-\t-\t-\t-\t-\t-",
        "Tools",
        "tool\tcalls/s\tnot ok/s\ttime p95",
        "(custom)\t-\t-\t-",
        "Indexes",
        "index\twaiting\tlag\tsearches/s\tsearch p95",
        "messages\t40\t2.5 s\t-\t-",
        "Database",
        "connections\tin use\twait p95",
        "recall service\t4/10\t-",
    ]


async def test_the_live_view_is_refreshed(url: str) -> None:
    output = io.StringIO()
    screen = Console(file=output, force_terminal=True, width=100, height=40)
    showing = asyncio.create_task(show_live([url], 0.2, screen))
    await eventually(lambda: output.getvalue().count("Ctrl-C ends") >= 2)
    showing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await showing
    shown = output.getvalue()
    for text in ("Runs, 12 in the queue", "foreground", "recall", "messages", "2.5 s"):
        assert text in shown
    # Control characters of a name are not written to the terminal.
    assert "openai/[2Jx" in shown


async def test_ports_are_those_of_the_data_folder(url: str, tmp_path: Path) -> None:
    with ReservedPort() as port:
        away = f"127.0.0.1:{port.number}"
        listed = [{"targets": [url.removeprefix("http://"), away], "labels": {}}]
        write(tmp_path / "metrics-targets.json", json.dumps(listed))
        printed = await run_command("top", "--once", "--data", str(tmp_path), "--interval", "0.2")
    assert printed.code == 0
    assert "foreground\t3" in printed.out
    assert f"http://{away}\tdoes not answer" in printed.out


async def test_the_exit_code_reports_that_no_port_answers() -> None:
    with ReservedPort() as port:
        target = f"http://127.0.0.1:{port.number}"
        printed = await run_command("top", "--metrics", target, "--interval", "0.2")
    assert printed.code == EXIT_UNREACHABLE
    assert f"{target}\tdoes not answer" in printed.out


async def test_a_folder_that_lists_no_ports_is_named(tmp_path: Path) -> None:
    printed = await run_command("top", "--once", "--data", str(tmp_path))
    assert printed.code == EXIT_USAGE
    assert "lists no metrics ports" in printed.err


def write(path: Path, text: str) -> None:
    path.write_text(text)
