"""Options that many commands have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from strata.cli.client import Client, talk
from strata.cli.connection import Choice, Target, find_target
from strata.cli.settings import CliSettings

ResultT = TypeVar("ResultT")

_PANEL = "Connection"

AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="Name or id of the agent.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")]
ConversationOption = Annotated[
    str, typer.Option("--conversation", help="Id of a conversation; the default one if not given.")
]


class Connection:
    """Gives a command its gateway.

    Args:
        choice: What the options said.
    """

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def target(self) -> Target:
        """Returns the gateway that is meant.

        Raises:
            StrataError: It cannot be found.
        """
        return find_target(self.choice, CliSettings())

    def run(self, work: Callable[[Client], Awaitable[ResultT]]) -> ResultT:
        """Runs `work` against the gateway, to its end.

        Raises:
            StrataError: The gateway cannot be found or reached, or `work` failed.
        """
        return talk(self.target(), work)


def online(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of the connection, and a `Connection` as first argument.

    The command is declared as ``def show(connection: Connection, agent: AgentArgument)``;
    what typer sees has ``--address``, ``--api-key`` and ``--data`` in its place.
    """

    @functools.wraps(command)
    def run(*, address: str, api_key: str, data: Path | None, **values: Any) -> None:
        command(Connection(Choice(address, api_key, data)), **values)

    hints = get_type_hints(command, include_extras=True)
    _, *own = inspect.signature(command).parameters.values()
    parameters = [
        each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for each in own
    ]
    parameters += _connection_parameters()
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _connection_parameters() -> list[inspect.Parameter]:
    declared: list[tuple[str, object, object]] = [
        (
            "address",
            Annotated[
                str,
                typer.Option(
                    "--address",
                    metavar="HOST:PORT",
                    help="The gateway; else STRATA_ADDRESS, else the one of the data folder.",
                    rich_help_panel=_PANEL,
                    show_default=False,
                ),
            ],
            "",
        ),
        (
            "api_key",
            Annotated[
                str,
                typer.Option(
                    "--api-key",
                    metavar="KEY",
                    help="The key; else STRATA_API_KEY, else the one of the data folder.",
                    rich_help_panel=_PANEL,
                    show_default=False,
                ),
            ],
            "",
        ),
        (
            "data",
            Annotated[
                Path | None,
                typer.Option(
                    "--data",
                    metavar="FOLDER",
                    help="The data folder; else STRATA_DATA, else the usual place.",
                    rich_help_panel=_PANEL,
                    show_default=False,
                ),
            ],
            None,
        ),
    ]
    return [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, annotation, default in declared
    ]
