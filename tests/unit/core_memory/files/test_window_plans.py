"""Validation of requests to open files, with the error messages for models."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from strata.core_memory.files.domain.file_windows import (
    AttachedFile,
    OpenWindows,
    WindowRequest,
)
from strata.core_memory.files.domain.files import ContentState
from strata.core_memory.files.domain.window_plans import (
    check_requests,
    nearest,
    not_attached,
    plan_opening,
)
from strata.protocol.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    Reason,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def file(state: ContentState = ContentState.TEXT, lines: int = 40, error: str = "") -> AttachedFile:
    return AttachedFile("file-1", "d/F", state, error, lines)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ((), "No file requests provided"),
        (
            tuple(WindowRequest(name) for name in "abc"),
            "Cannot open 3 files: exceeds configured maximum limit of 2 files",
        ),
        ((WindowRequest("F", -1),), "Offset for file F must be >= 0 (0-indexed), got -1"),
        ((WindowRequest("F", 0, 0),), "Length for file F must be >= 1, got 0"),
        (
            (WindowRequest("F"), WindowRequest("F", 3)),
            "File F is requested twice: a file has one window at a time",
        ),
    ],
)
def test_invalid_requests_are_refused_with_messages(
    requests: tuple[WindowRequest, ...], message: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_requests(OpenWindows("agent-1", requests, max_open=2))
    assert caught.value.message == message
    assert caught.value.violations


def test_an_offset_past_the_end_is_refused() -> None:
    command = OpenWindows("agent-1", (WindowRequest("d/F", 501),))
    with pytest.raises(OutOfRangeError) as caught:
        plan_opening(command, {"d/F": file()}, [], NOW)
    assert caught.value.message == (
        "File d/F has only 40 lines, but requested offset 501 is out of range"
    )
    assert caught.value.reason is Reason.INVALID_FIELD


@pytest.mark.parametrize(("offset", "is_right"), [(39, True), (40, False)])
def test_the_largest_offset_is_that_of_the_last_line(offset: int, is_right: bool) -> None:
    command = OpenWindows("agent-1", (WindowRequest("d/F", offset, 1),))
    if is_right:
        opening = plan_opening(command, {"d/F": file()}, [], NOW)
        assert opening.message == "* Opened d/F (lines 40-40)"
    else:
        with pytest.raises(OutOfRangeError):
            plan_opening(command, {"d/F": file()}, [], NOW)


def test_a_length_without_an_offset_counts_from_the_beginning() -> None:
    command = OpenWindows("agent-1", (WindowRequest("d/F", None, 3),))
    assert plan_opening(command, {"d/F": file()}, [], NOW).message == "* Opened d/F (lines 1-3)"


def test_an_offset_without_a_length_extends_to_the_end() -> None:
    command = OpenWindows("agent-1", (WindowRequest("d/F", 9),))
    assert plan_opening(command, {"d/F": file()}, [], NOW).message == "* Opened d/F (lines 10-40)"


def test_an_empty_file_can_be_opened() -> None:
    command = OpenWindows("agent-1", (WindowRequest("d/F", 0, 5),))
    opening = plan_opening(command, {"d/F": file(lines=0)}, [], NOW)
    assert opening.message == "* Opened d/F"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (ContentState.STORED, "File d/F is still being read; open it again in a moment"),
        (ContentState.FAILED, "File d/F could not be read: It is encrypted."),
    ],
)
def test_a_file_without_text_cannot_be_opened(state: ContentState, message: str) -> None:
    command = OpenWindows("agent-1", (WindowRequest("d/F"),))
    with pytest.raises(FailedPreconditionError) as caught:
        plan_opening(command, {"d/F": file(state, 0, "It is encrypted.")}, [], NOW)
    assert caught.value.message == message
    assert caught.value.reason is Reason.EDIT_NOT_APPLICABLE


def test_the_most_similar_names_come_first() -> None:
    names = [f"docs/chapter-{number}.md" for number in range(100)]
    assert nearest("chapter-42.md", names, 2)[0] == "docs/chapter-42.md"
    assert nearest("zzz", ["b", "a"], 2) == ["a", "b"]


def test_error_states_that_no_files_are_attached() -> None:
    assert not_attached("F", []).message == (
        "F not attached - did you get the filename correct? Currently you have no files attached."
    )
