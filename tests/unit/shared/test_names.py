"""The rule for names of objects, in the requests of all services."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strata.agent_loop.convert import checks as agent_checks
from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.archival.convert import archives as archive_convert
from strata.core_memory.files import convert as file_convert
from strata.protocol.errors import InvalidArgumentError
from strata.shared.ids import new_id
from strata.shared.names import name_problems

GOOD = [
    "a",
    "Ada Lovelace",
    "日本語",
    "👩‍🚀 crew",
    "report (2).pdf",
    "O'Neil; rm -rf",
    "<b>",
    "x" * 128,
]
BAD = ["a/b", "a\\b", "a\nb", "a\rb", "a\tb", "a\0b", "a\x1b[31m", "a\x7f", "a\x85b", "a\u2028b"]
BAD += [".", ".."]
BAD += [" a", "a ", "x" * 1001, "a\u202eb", "\ud800", "\u200b", "\u3164\ufeff"]


def agent(name: str) -> None:
    agent_checks.refuse(agent_checks.name_violations("name", name))


def archive(name: str) -> None:
    archive_convert.to_change(
        archive_pb.UpdateArchiveRequest(archive_id=new_id("archive"), name=name)
    )


def folder(name: str) -> None:
    file_convert.to_new_folder(file_pb.CreateFolderRequest(request_id="r", name=name))


DOORS: list[Callable[[str], None]] = [agent, archive, folder]


@pytest.mark.parametrize("name", GOOD)
def test_ordinary_names_are_accepted(name: str) -> None:
    assert name_problems(name) == []
    for door in DOORS:
        door(name)


@pytest.mark.parametrize("name", BAD)
def test_names_that_break_lines_paths_or_terminals_are_refused(name: str) -> None:
    assert name_problems(name)
    if name == "\ud800":
        return  # no request can contain it
    for door in DOORS:
        with pytest.raises(InvalidArgumentError) as caught:
            door(name)
        assert {violation.field for violation in caught.value.violations} == {"name"}


def test_names_of_files_and_folders_that_look_the_same_are_the_same() -> None:
    composed, decomposed = "caf\u00e9.txt", "cafe\u0301.txt"
    made = file_convert.to_new_folder(file_pb.CreateFolderRequest(name=decomposed))
    header = file_convert.to_header(
        file_pb.UploadFileHeader(folder_id=new_id("folder"), name=decomposed)
    )
    assert made.name == header.name == composed


def test_a_name_is_required() -> None:
    for door in (archive, folder):
        with pytest.raises(InvalidArgumentError):
            door("")
