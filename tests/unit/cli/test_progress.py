"""Progress of the demo model: one bar on a terminal, lines without one."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from strata.standalone.chat_model.progress import Progress, StartPhase
from strata.standalone.compose.progress import (
    ProgressBar,
    parse_progress,
    progress_documents,
    progress_lines,
)
from unit.cli.terminal import Terminal

PHASE = next(iter(StartPhase))
FETCHED = [
    Progress(PHASE, "Fetching weights", done * 1_000_000, 50_000_000, "bytes") for done in range(51)
]
BUILT = [Progress(PHASE, "Building the engine", done, 7, "steps") for done in range(8)]


def test_a_terminal_shows_one_line_for_all_reports() -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    with ProgressBar(console) as bar:
        for progress in (*FETCHED, *BUILT[:5]):
            bar.report(progress)
        bar._bar.refresh()
        terminal = Terminal(100, 20)
        terminal.feed(out.getvalue().replace("\n", "\r\n"))
        [line] = [line for line in terminal.text.splitlines() if line.strip()]
        assert "Building the engine" in line
        assert "4 of 7" in line
    terminal = Terminal(100, 20)
    terminal.feed(out.getvalue().replace("\n", "\r\n"))
    assert terminal.text.strip() == ""


def test_progress_lines_of_another_process_are_parsed() -> None:
    lines: list[str] = []
    report = progress_documents(lines.append)
    for progress in (*FETCHED, *BUILT):
        report(progress)
    assert [parse_progress(line) for line in lines] == [*FETCHED, *BUILT]


@pytest.mark.parametrize("line", ["", "Strata is ready", 'PROGRESS {"phase":', "PROGRESS {}"])
def test_other_lines_are_not_parsed_as_progress(line: str) -> None:
    assert parse_progress(line) is None


def test_without_a_terminal_each_step_is_a_line() -> None:
    out = StringIO()
    report = progress_lines(Console(file=out, width=100))
    for progress in BUILT:
        report(progress)
    assert out.getvalue().splitlines() == [
        "  Building the engine (0 of 7)",
        "  Building the engine (7 of 7)",
    ]
