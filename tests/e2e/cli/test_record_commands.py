"""``strata runs record``: where it writes the recording, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Run
from e2e.cli.scripted import ScriptedGateway
from strata.agent_loop.convert.recordings import recording_to_json
from strata.shared.ids import new_id
from unit.agent_loop.loop.loop_harness import LoopHarness
from unit.agent_loop.loop.model_replies import reply
from unit.agent_loop.replay.recorded import record

RUN = new_id("run")


async def made(gateway: ScriptedGateway, note: str = "") -> None:
    harness = LoopHarness()
    request = harness.request()
    sink = await harness.run(request, reply("Done."))
    document = json.loads(recording_to_json(await record(harness, request, sink.events)))
    document["notes"] = [note] if note else []
    gateway.runs.recording = json.dumps(document).encode()


async def test_recording_is_written_and_can_be_replayed(
    strata: Run, gateway: ScriptedGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await made(gateway, "Something has changed since.")
    done = await strata("runs", "record", RUN)
    assert done.code == 0, done
    file = tmp_path / f"{RUN}.recording.json"
    assert file.read_bytes().strip() == gateway.runs.recording
    assert f"strata runs replay {RUN}.recording.json" in " ".join(done.err.split())
    assert "Something has changed since." in done.err
    assert (await strata("runs", "replay", str(file))).code == 0


async def test_an_existing_file_is_overwritten_only_with_force(
    strata: Run, gateway: ScriptedGateway, tmp_path: Path
) -> None:
    await made(gateway)
    file = tmp_path / "mine.json"
    file.write_text("mine")
    assert (await strata("runs", "record", RUN, "-o", str(file))).code == 2
    assert file.read_text() == "mine"
    assert (await strata("runs", "record", RUN, "-o", str(file), "--force")).code == 0
    assert json.loads(file.read_text())["format"] == "strata-run-recording"
    assert (await strata("runs", "record", RUN, "-o", str(tmp_path / "no" / "file"))).code == 2


async def test_a_recording_can_be_written_to_standard_output(
    strata: Run, gateway: ScriptedGateway
) -> None:
    gateway.runs.recording = b'{"format": "another"}'
    done = await strata("runs", "record", RUN, "-o", "-")
    assert (done.code, json.loads(done.out)) == (0, {"format": "another"})
