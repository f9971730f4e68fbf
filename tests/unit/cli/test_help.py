"""The help of commands."""

from __future__ import annotations

from itertools import pairwise

import pytest
from typer.testing import CliRunner

from strata.cli.main import app


@pytest.mark.parametrize("command", [["chat"], ["files", "upload"]])
def test_the_help_fills_its_lines(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80"})
    text, _, _ = result.output.partition("╭")
    lines = text.splitlines()
    for line, following in pairwise(lines):
        if line.strip() and following.strip():
            first_word = following.split()[0]
            assert len(f"{line.rstrip()} {first_word}") > 79, line
