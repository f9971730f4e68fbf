"""``strata folders`` and ``strata files`` on a whole running Strata."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from command_line import Run
from e2e.cli.pty_program import on_terminal
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.cli.files.uploads import CHUNK_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="session")

MANUAL = "\n".join(f"Line {n} of the manual." for n in range(1, 41))


def rewrite(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.fixture
def folder() -> str:
    return f"papers {uuid.uuid4()}"


@pytest.fixture
def manual(tmp_path: Path) -> Path:
    file = tmp_path / "manual.txt"
    file.write_text(MANUAL.replace("Line 20 of", "The kestrel nests in line 20 of"))
    return file


@pytest_asyncio.fixture(loop_scope="session")
async def stored(strata: Run, folder: str, manual: Path, ann: agent_pb.Agent) -> str:
    """A folder with the manual, attached to the agent."""
    done = await strata("files", "upload", folder, str(manual), "--create")
    assert done.code == 0, done
    assert (await strata("folders", "attach", ann.name, folder)).code == 0
    return folder


async def test_folders_are_created_listed_attached_and_deleted(
    strata: Run, folder: str, ann: agent_pb.Agent
) -> None:
    made = await strata(
        "folders", "create", folder, "--description", "Papers.", "--instructions", "Cite.", "--json"
    )
    assert made.code == 0, made
    assert json.loads(made.out)["instructions"] == "Cite."
    again = await strata("folders", "create", folder)
    assert again.code == 1
    assert "[NAME_TAKEN]" in again.err
    listed = await strata("folders", "list", "--limit", "500")
    rows = [line.split("\t") for line in listed.out.splitlines()]
    assert [row[:2] + row[3:4] for row in rows if row[0] == folder] == [[folder, "0", "Papers."]]
    shown = await strata("folders", "show", folder)
    expected = {f"name: {folder}", "description: Papers.", "instructions: Cite.", "files: 0"}
    assert expected <= set(shown.out.splitlines())
    assert json.loads((await strata("folders", "show", folder, "--json")).out)["name"] == folder
    attached = await strata("folders", "attach", ann.name, folder)
    assert attached.out == f"{ann.name} now has {folder}, with 0 files.\n"
    own = json.loads((await strata("folders", "list", "--agent", ann.name, "--json")).out)
    assert [entry["name"] for entry in own["folders"]] == [folder]
    taken = await strata("folders", "detach", ann.name, folder)
    assert taken.out == f"{ann.name} no longer has {folder}.\n"
    refused = await strata("folders", "delete", folder)
    assert refused.code == 2
    assert (await strata("folders", "delete", folder, "--yes")).code == 0
    gone = await strata("folders", "attach", ann.name, folder)
    assert gone.code == 1
    assert f'There is no folder "{folder}"' in gone.err


async def test_a_file_can_be_shown_by_path_and_by_id(strata: Run, stored: str) -> None:
    path = f"{stored}/manual.txt"
    shown = await strata("files", "show", path)
    fields = dict(line.split(": ", 1) for line in shown.out.splitlines())
    assert (fields["name"], fields["state"], fields["type"]) == (
        "manual.txt",
        "ready",
        "text/plain",
    )
    as_json = json.loads((await strata("files", "show", fields["id"], "--json")).out)
    assert as_json["contentHash"] == fields["sha-256"]
    missing = await strata("files", "show", f"{stored}/other.txt")
    assert (missing.code, "[FILE_NOT_FOUND]" in missing.err) == (1, True), missing


async def test_a_file_of_several_pages_is_read_whole_or_from_a_line(
    strata: Run, folder: str, tmp_path: Path, ann: agent_pb.Agent
) -> None:
    # Most lines are equal: equal chunks are embedded once.
    lines = [str(number) if number % 30 == 0 else "x" * 1000 for number in range(1, 151)]
    long = tmp_path / "long.txt"
    long.write_text("\n".join(lines))
    assert (await strata("files", "upload", folder, str(long), "--create")).code == 0
    path = f"{folder}/long.txt"
    not_attached = await strata("files", "read", ann.name, path)
    assert (not_attached.code, "[FILE_NOT_FOUND]" in not_attached.err) == (1, True), not_attached
    assert (await strata("folders", "attach", ann.name, folder)).code == 0
    assert (await strata("files", "read", ann.name, path)).out.splitlines() == lines
    rest = await strata("files", "read", ann.name, path, "--from", "149")
    assert rest.out.splitlines() == lines[148:]
    as_json = json.loads((await strata("files", "read", ann.name, path, "--json")).out)
    assert as_json["lines"] == lines


async def test_files_are_uploaded_and_followed_until_they_are_ready(
    strata: Run, folder: str, manual: Path, tmp_path: Path
) -> None:
    big = tmp_path / "big.txt"
    # More than one chunk of an upload.
    lines = CHUNK_BYTES // 80 + 1_000
    big.write_text("x" * 79 + "\n" + ("y" * 79 + "\n") * lines)
    missing = await strata("files", "upload", folder, str(manual))
    assert missing.code == 1
    assert "List them with: strata folders list" in missing.err
    done = await strata("files", "upload", folder, str(manual), str(big), "--create")
    assert done.code == 0, done
    assert [line.split("\t")[:3] for line in done.out.splitlines()[1:]] == [
        ["manual.txt", "ready", "40"],
        ["big.txt", "ready", f"{lines + 1:,}"],
    ]
    assert "big.txt: uploading 1.1 MB" in done.err
    assert "big.txt: ready" in done.err
    listed = json.loads((await strata("files", "list", folder, "--json")).out)
    assert [entry["name"] for entry in listed["files"]] == ["big.txt", "manual.txt"]
    assert int(listed["files"][0]["sizeBytes"]) == big.stat().st_size


async def test_an_upload_shows_its_progress_on_a_terminal(
    folder: str, manual: Path, place: Mapping[str, str]
) -> None:
    arguments = ("files", "upload", folder, str(manual), "--create")
    async with on_terminal(*arguments, environment=place) as program:
        await program.shows("━")
        assert await program.ends() == 0
        assert "ready" in program.terminal.text


async def test_unreadable_files_are_refused_and_the_rest_continues(
    strata: Run, folder: str, manual: Path, tmp_path: Path
) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    done = await strata("files", "upload", folder, str(image), str(manual), "--create")
    assert done.code == 1
    assert "image.png: " in done.err
    assert "[INVALID_FIELD]" in done.err
    assert "manual.txt\tready" in done.out


async def test_a_broken_file_has_a_reason(strata: Run, folder: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(b"%PDF-1.7\nnothing of the kind")
    done = await strata("files", "upload", folder, str(broken), "--create")
    assert done.code == 1
    assert "broken.pdf\tfailed" in done.out
    reason = done.err.splitlines()[-1].removeprefix("broken.pdf: ")
    assert reason
    listed = await strata("files", "list", folder)
    assert reason in listed.err


async def test_a_file_with_the_same_name_is_replaced_only_with_the_option(
    strata: Run, stored: str, manual: Path
) -> None:
    same = await strata("files", "upload", stored, str(manual))
    assert same.code == 0, same
    rewrite(manual, "Quite different.")
    taken = await strata("files", "upload", stored, str(manual))
    assert taken.code == 1
    assert "[NAME_TAKEN]" in taken.err
    replaced = await strata("files", "upload", stored, str(manual), "--replace")
    assert replaced.code == 0, replaced
    assert "manual.txt\tready\t1\t" in replaced.out


async def test_wrong_paths_are_reported_before_anything_is_sent(
    strata: Run, folder: str, manual: Path, tmp_path: Path
) -> None:
    for path, complaint in ((tmp_path, "is a folder"), (tmp_path / "none", "There is no file")):
        done = await strata("files", "upload", folder, str(manual), str(path), "--create")
        assert done.code == 2
        assert complaint in done.err
    assert (await strata("files", "list", folder)).code == 1


async def test_with_no_wait_the_upload_returns_immediately(
    strata: Run, folder: str, manual: Path
) -> None:
    done = await strata("files", "upload", folder, str(manual), "--create", "--no-wait", "--json")
    assert done.code == 0, done
    [file] = json.loads(done.out)["files"]
    assert file["name"] == "manual.txt"


async def test_files_are_opened_and_closed(strata: Run, stored: str, ann: agent_pb.Agent) -> None:
    name = f"{stored}/manual.txt"
    opened = await strata("files", "open", ann.name, f"{name}:11-13")
    assert opened.code == 0, opened
    assert opened.out.splitlines()[1].split("\t")[:2] == [name, "11-13"]
    listed = await strata("files", "list", "--agent", ann.name)
    assert listed.out.splitlines()[1].split("\t")[:3] == ["11-13", "manual.txt", "ready"]
    prompt = await strata("memory", "show", ann.name, "--prompt")
    assert "[Viewing lines 11 to 13 (out of 40 lines)]" in prompt.out
    unknown = await strata("files", "open", ann.name, f"{stored}/none.txt")
    assert unknown.code == 1
    assert "[FILE_NOT_FOUND]" in unknown.err
    assert (await strata("files", "open", ann.name, f"{name}:5-3")).code == 2
    assert (await strata("files", "close", ann.name)).code == 2
    closed = await strata("files", "close", ann.name, name)
    assert closed.code == 0
    assert len(closed.out.splitlines()) == 1
    await strata("files", "open", ann.name, name)
    everything = json.loads((await strata("files", "close", ann.name, "--all", "--json")).out)
    assert everything["openFiles"] == []


async def test_files_are_searched_by_pattern(strata: Run, stored: str, ann: agent_pb.Agent) -> None:
    done = await strata("files", "grep", ann.name, "KESTREL")
    assert done.code == 0, done
    assert done.out == f"{stored}/manual.txt:20: The kestrel nests in line 20 of the manual.\n"
    around = await strata("files", "grep", ann.name, "kestrel", "-C", "1")
    assert f"{stored}/manual.txt:20\n" in around.out
    assert "Line 19 of the manual." in around.out
    assert "Line 21 of the manual." in around.out
    many = await strata("files", "grep", ann.name, "manual", "--limit", "100")
    assert len(many.out.splitlines()) == 40
    some = await strata("files", "grep", ann.name, "manual", "--limit", "25")
    assert len(some.out.splitlines()) == 25
    assert "There are 40 matches" in some.err
    none = await strata("files", "grep", ann.name, "kestrel", "--include", "*.md")
    assert (none.code, none.out) == (0, "")
    assert "Nothing found." in none.err
    wrong = await strata("files", "grep", ann.name, "(")
    assert wrong.code == 1
    document = json.loads((await strata("files", "grep", ann.name, "kestrel", "--json")).out)
    assert document["totalMatches"] == 1


async def test_files_are_searched_by_meaning(strata: Run, stored: str, ann: agent_pb.Agent) -> None:
    done = await strata("files", "search", ann.name, "where does the kestrel nest?", "-n", "2")
    assert done.code == 0, done
    assert f"{stored}/manual.txt (lines " in done.out
    assert "kestrel" in done.out
    document = json.loads(
        (await strata("files", "search", ann.name, "kestrel nests", "--json")).out
    )
    assert document["hits"][0]["fileName"] == f"{stored}/manual.txt"
    unrelated = await strata("files", "search", ann.name, "zzzqqq", "--explain")
    assert (unrelated.code, unrelated.out) == (0, "")
    assert "Nothing found." in unrelated.err
    assert "0 of the nearest pieces are excluded as unrelated." in unrelated.err


async def test_a_file_is_deleted_by_name(strata: Run, stored: str) -> None:
    name = f"{stored}/manual.txt"
    assert (await strata("files", "delete", name)).code == 2
    assert (await strata("files", "delete", name, "-y")).out == "Deleted manual.txt.\n"
    gone = await strata("files", "delete", name, "-y")
    assert gone.code == 1
    assert 'There is no file "manual.txt"' in gone.err
    assert (await strata("files", "delete", "manual.txt", "-y")).code == 2
