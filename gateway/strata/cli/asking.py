"""Asks the person before something is lost."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.cli.chat.prompt import interruptible, is_interactive
from strata.cli.failures import UsageError

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def ask(question: str, *, yes: bool, otherwise: str) -> None:
    """Returns if the person agrees.

    Args:
        question: What is asked on a terminal.
        yes: The person agreed beforehand.
        otherwise: Why consent is needed, for where nobody can be asked.

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
