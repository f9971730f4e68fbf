"""Commands of `strata` in the test's process, without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from strata.cli.main import app


@dataclass(frozen=True)
class Outcome:
    """The exit code of a command and what it printed."""

    code: int
    out: str
    err: str


Run = Callable[..., Coroutine[Any, Any, Outcome]]


async def run_command(
    *arguments: str, typed: str | None = None, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Runs a command in a thread with its own event loop.

    Args:
        arguments: The words after ``strata``.
        typed: The standard input.
        environment: Variables in addition to those of the process.
    """
    result = await asyncio.to_thread(
        CliRunner().invoke,
        app,
        list(arguments),
        input=typed,
        env=environment,
        catch_exceptions=False,
    )
    return Outcome(result.exit_code, result.stdout, result.stderr)


def completion_variables(line: str) -> dict[str, str]:
    """Returns the variables with which bash requests completions of the last word of a line."""
    position = str(len(line.split(" ")) - 1)
    return {"_STRATA_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": position}


def completions(line: str, **environment: str) -> list[str]:
    """Returns the completions of the last word of a line; asserts that nothing else is printed.

    Args:
        line: The line, which begins with ``strata``; a final blank requests the next word.
        environment: Variables beside those of the process.
    """
    variables = {**completion_variables(line), **environment}
    result = CliRunner().invoke(app, env=variables, prog_name="strata", catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout.split()
