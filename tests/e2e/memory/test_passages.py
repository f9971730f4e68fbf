"""``strata archival import``, ``log``, ``restore``, ``delete`` and ``purge``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import Run
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb

pytestmark = pytest.mark.asyncio(loop_scope="session")


def write(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


async def listed(strata: Run, agent: str, *more: str) -> list[dict[str, Any]]:
    done = await strata("archival", "list", agent, "--json", "-n", "5000", *more)
    assert done.code == 0, done
    passages: list[dict[str, Any]] = json.loads(done.out)["passages"]
    return passages


async def test_a_file_of_passages_is_imported_once(
    strata: Run, ann: agent_pb.Agent, tmp_path: Path
) -> None:
    lines: list[Any] = [{"text": f"Fact number {n} of the long list."} for n in range(1100)]
    lines[7] |= {"tags": ["b", "a"], "create_time": "2024-03-01T10:00:00Z", "metadata": {"k": "v"}}
    lines.insert(3, "")
    file = write(tmp_path / "facts.jsonl", *lines)
    done = await strata("archival", "import", str(file), "--agent", ann.name)
    assert done.code == 0, done
    assert "Stored 1,100 of 1,100; 0 were there already." in done.out
    passages = await listed(strata, ann.name)
    assert len(passages) == 1100
    first = passages[0]
    assert (first["text"], first["tags"]) == ("Fact number 7 of the long list.", ["a", "b"])
    assert first["metadata"] == {"k": "v"}
    # The same command again is the same import; with --again its texts are duplicates.
    again = await strata("archival", "import", str(file), "--agent", ann.name)
    assert "Stored 1,100 of 1,100; 0 were there already." in again.out
    anew = await strata("archival", "import", str(file), "--agent", ann.name, "--again")
    assert "Stored 0 of 1,100; 1,100 were there already." in anew.out
    assert len(await listed(strata, ann.name)) == 1100


async def test_an_import_reports_a_wrong_line_and_continues_after_its_correction(
    strata: Run, ann: agent_pb.Agent, tmp_path: Path
) -> None:
    lines: list[Any] = [{"text": f"Line {n}"} for n in range(700)]
    lines[600] = {"text": " "}
    file = write(tmp_path / "facts.jsonl", *lines)
    done = await strata("archival", "import", str(file), "--agent", ann.name)
    assert done.code == 1
    assert "After 500 passages" in done.err
    assert "line 601, text: must not be blank" in done.err
    for wrong in ("{", '{"words": "x"}', '["x"]', '{"text": 7}'):
        lines[600] = wrong
        refused = await strata("archival", "import", str(write(file, *lines)), "--agent", ann.name)
        assert (refused.code, "Line 601 of" in refused.err) == (2, True), refused
    lines[600] = {"text": "Line 600"}
    write(file, *lines)
    mended = await strata("archival", "import", str(file), "--agent", ann.name, "--json")
    assert json.loads(mended.out)["receivedCount"] == "700"
    assert len(await listed(strata, ann.name)) == 700


async def test_an_import_needs_one_target_and_a_file(
    strata: Run, ann: agent_pb.Agent, tmp_path: Path
) -> None:
    file = write(tmp_path / "facts.jsonl", {"text": "a"})
    assert (await strata("archival", "import", str(file))).code == 2
    both = ("--agent", ann.name, "--archive", "archive-1")
    assert (await strata("archival", "import", str(file), *both)).code == 2
    assert (await strata("archival", "import", str(tmp_path / "no"), "--agent", ann.name)).code == 2
    empty = write(tmp_path / "empty.jsonl", "")
    assert (await strata("archival", "import", str(empty), "--agent", ann.name)).code == 2


async def test_a_passage_is_deleted_restored_and_destroyed(
    strata: Run, ann: agent_pb.Agent
) -> None:
    await strata("archival", "insert", ann.name, "The boat is called Nora.", "--tag", "boat")
    (passage,) = await listed(strata, ann.name)
    deleted = await strata("archival", "delete", passage["id"], "--reason", "it was sold")
    assert f"strata archival restore {passage['id']}" in deleted.out
    assert await listed(strata, ann.name) == []
    (hidden,) = await listed(strata, ann.name, "--deleted")
    assert hidden["deleteTime"]
    restored = await strata("archival", "restore", passage["id"])
    assert "Revision 3: The boat is called Nora." in restored.out
    shown = await strata("archival", "log", passage["id"])
    rows = [line.split("\t") for line in shown.out.splitlines()[1:]]
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("3", "restore", ""),
        ("2", "delete", "it was sold"),
        ("1", "insert", ""),
    ]
    # There is no terminal for the question here.
    assert (await strata("archival", "purge", passage["id"])).code == 2
    purged = await strata("archival", "purge", passage["id"], "--yes")
    assert "Destroyed 3 versions." in purged.out
    assert "[PASSAGE_NOT_FOUND]" in (await strata("archival", "log", passage["id"])).err


async def test_near_duplicates_are_returned_with_the_insert(
    strata: Run, ann: agent_pb.Agent
) -> None:
    words = "Ada's favourite colour is green, and she lives in Lisbon near the river."
    await strata("archival", "insert", ann.name, words)
    (first,) = await listed(strata, ann.name)
    near = await strata("archival", "insert", ann.name, words.replace("green", "blue"))
    assert f"Nearly the same: {first['id']}" in near.err
