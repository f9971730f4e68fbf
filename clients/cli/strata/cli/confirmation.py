"""Confirmation before a command deletes or overwrites something."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.cli.chat.prompt import interruptible, is_interactive
from strata.cli.failures import UsageError

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, *, yes: bool, otherwise: str) -> None:
    """Asks for confirmation, and returns if the person agrees.

    Args:
        question: The question shown on a terminal.
        yes: Skips the question (option ``--yes``).
        otherwise: The error text where there is no terminal: why confirmation is needed.

    Raises:
        UsageError: There is no terminal.
        typer.Abort: The person refused.
    """
    if yes:
        return
    if not is_interactive():
        raise UsageError(f"{otherwise} Give --yes.")
    with interruptible():
        typer.confirm(question, abort=True)
