"""Files that are not recordings are refused, and nothing in them is executed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strata.agent_loop.convert.recordings import recording_from_json, recording_to_json
from strata.agent_loop.replay import recording as recordings
from strata.agent_loop.replay.replay import replay
from strata.cli.main import app
from strata.protocol.errors import InvalidArgumentError
from unit.agent_loop.loop.loop_harness import LoopHarness
from unit.agent_loop.loop.model_replies import reply
from unit.agent_loop.replay.recorded import record


@pytest.fixture
async def document() -> dict[str, Any]:
    harness = LoopHarness()
    request = harness.request()
    sink = await harness.run(request, harness.calls("reads"), reply("Done."))
    value: dict[str, Any] = json.loads(
        recording_to_json(await record(harness, request, sink.events))
    )
    return value


def change(document: dict[str, Any], *path: str | int, to: Any) -> bytes:
    place: Any = document
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = to
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        (["format"], "something", "format"),
        (["version"], 2, "version 2"),
        (["version"], "1", "version '1'"),
        (["more"], 1, "more"),
        (["agent"], [], "wrong values"),
        (["agent", "type"], "AGENT_TYPE_OTHER", "AGENT_TYPE_OTHER"),
        (["agent", "name"], {}, "name"),
        (["inputs"], [], "no inputs"),
        (["models", 0, "context_window"], -1, "context window"),
        (["steps", 0, "request", "options"], 99, "does not exist"),
        (["steps", 0, "request", "messages", 0], -1, "does not exist"),
        (["steps", 0, "request", "digest", "window"], [1], "wrong values"),
        (["steps", 0, "request", "digest", "window"], ["5", "1"], "not ranges"),
        (["tools", 0, "parameters_json"], "import os", "wrong values"),
        (["tools", 0, "parameters_json"], "[]", "schema"),
        (["tools", 0, "effect"], "explosive", "wrong values"),
        (["finished"], {}, "no end"),
        (["texts", 0], 7, "texts"),
    ],
)
async def test_wrong_value_is_refused(
    document: dict[str, Any], path: list[str | int], value: Any, error: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=error):
        recording_from_json(change(document, *path, to=value))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (
            b'{"format": "strata-run-recording", "version": 1, "agent": ' + b"[" * 200 + b"]" * 200,
            "not JSON",
        ),
        (b"[]", "format"),
        (b"null", "format"),
        (b'{"format": NaN}', "not JSON"),
        (rb'{"format": "strata-run-recording", "version": 1, "agent": "\ud800"}', "not JSON"),
    ],
)
def test_file_that_is_not_a_recording_is_refused(data: bytes, error: str) -> None:
    with pytest.raises(InvalidArgumentError, match=error):
        recording_from_json(data)


def test_file_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.agent_loop.convert.recordings.MAX_RECORDING_BYTES", 10)
    with pytest.raises(InvalidArgumentError, match="larger than"):
        recording_from_json(b" " * 11)


async def test_any_member_may_be_missing_or_of_another_kind(document: dict[str, Any]) -> None:
    """A readable file can be replayed, whatever it contains."""
    for damaged in _damaged(document):
        try:
            recording = recording_from_json(json.dumps(damaged).encode())
        except InvalidArgumentError:
            continue
        await replay(recording)


def _damaged(document: dict[str, Any]) -> list[dict[str, Any]]:
    damaged = []
    for path in _paths(document):
        values: tuple[Any, ...] = (None, {}, "x", -1)
        for value in values:
            copy = json.loads(json.dumps(document))
            change(copy, *path, to=value)
            damaged.append(copy)
    return damaged


def _paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        # Members of one list are of one kind.
        items = list(enumerate(value))[:1]
    return [
        path
        for name, member in items
        if (*before, name) != ("format",)
        for path in [(*before, name), *_paths(member, (*before, name))]
    ]


Command = Callable[..., Any]


@pytest.fixture
def strata() -> Command:
    return lambda *arguments: CliRunner().invoke(app, ["runs", "replay", *arguments])


async def _to_thread(command: Command, *arguments: str) -> Any:
    return await asyncio.to_thread(command, *arguments)


async def test_command_prints_the_first_difference(
    document: dict[str, Any], strata: Command, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    file.write_bytes(json.dumps(document).encode())
    same = await _to_thread(strata, str(file))
    assert same.exit_code == 0, same.output
    assert "Same: 2 of 2 steps" in same.stdout
    file.write_bytes(change(document, "agent", "system", to="Another base."))
    differs = await _to_thread(strata, str(file))
    assert differs.exit_code == 1
    assert "steps[0].request.system" in differs.stdout
    assert "+Another base." in differs.stdout
    shown = json.loads((await _to_thread(strata, str(file), "--json")).stdout)
    assert (shown["same"], shown["steps"], shown["steps_replayed"]) == (False, 2, 0)
    assert shown["difference"]["path"] == "steps[0].request.system"


def test_command_refuses_an_unreadable_file(strata: Command, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert strata(str(file)).exit_code == 2
    assert strata(str(tmp_path)).exit_code == 2
    file.write_text("{}")
    refused = strata(str(file))
    assert refused.exit_code == 2
    assert "not a recording" in refused.stderr
    with file.open("wb") as opened:
        opened.truncate(recordings.MAX_RECORDING_BYTES + 1)
    assert strata(str(file)).exit_code == 2
