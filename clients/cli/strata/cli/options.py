"""Arguments and options that many commands share, and the connection to the gateway."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from strata.cli.agent_names import complete_agent
from strata.cli.arguments import MAX_INT32, folder_of_option, nonblank_name
from strata.cli.client import GatewayClient, talk
from strata.cli.connection import Choice, Target, find_organization_target, find_target
from strata.cli.failures import UsageError
from strata.client.settings import ClientSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ResultT = TypeVar("ResultT")
GroupT = TypeVar("GroupT", bound="DataclassInstance")

_PANEL = "Connection"

AgentArgument = Annotated[
    str,
    typer.Argument(
        metavar="AGENT",
        help="Name or id of the agent.",
        callback=nonblank_name,
        autocompletion=complete_agent,
    ),
]


def not_blank(text: str) -> str:
    """Returns a query that is not blank.

    Raises:
        UsageError: It is blank.
    """
    if not text.strip():
        raise UsageError("There is nothing to search for: the query is blank.")
    return text


QueryArgument = Annotated[
    str, typer.Argument(metavar="QUERY", help="Words or a question.", callback=not_blank)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=MAX_INT32, help="Maximum number of rows.")
]
OrganizationKeyOption = Annotated[
    str,
    typer.Option(
        "--organization-key",
        metavar="KEY",
        help="The organization key. Default: STRATA_ORGANIZATION_KEY, or the data folder's key.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
ConversationOption = Annotated[
    str, typer.Option("--conversation", help="Id of a conversation; the default one if not given.")
]


class GatewayOptions:
    """The gateway that a command calls.

    Args:
        choice: Values of the connection options.
    """

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def target(self) -> Target:
        """Returns address and key of the gateway.

        Raises:
            StrataError: No gateway or key is configured.
        """
        return find_target(self.choice, ClientSettings.from_environment())

    def run(self, work: Callable[[GatewayClient], Awaitable[ResultT]]) -> ResultT:
        """Connects to the gateway, runs `work` and returns its result.

        Raises:
            StrataError: The gateway cannot be found or reached, or `work` failed.
        """
        return talk(self.target(), work)

    def run_as_organization(
        self, work: Callable[[GatewayClient], Awaitable[ResultT]], organization_key: str = ""
    ) -> ResultT:
        """Runs `work` with an organization key.

        Args:
            work: Makes the calls.
            organization_key: The key; empty to use the key of the environment or the data folder.

        Raises:
            StrataError: The gateway or the key cannot be found, or `work` failed.
        """
        return talk(
            find_organization_target(
                self.choice, ClientSettings.from_environment(), organization_key
            ),
            work,
        )


def online(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the connection options to a command, and passes a `GatewayOptions` as first argument.

    The command is declared as ``def show(connection: Connection, agent: AgentArgument)``; typer
    gets ``--address``, ``--api-key``, ``--data``, ``--tls`` and ``--ca-file`` instead of
    `connection`. A parameter whose type is a dataclass becomes one option per field, so that
    commands can share a group of options.
    """
    hints = get_type_hints(command, include_extras=True)
    _, *own = inspect.signature(command).parameters.values()
    groups = {
        parameter.name: hints[parameter.name]
        for parameter in own
        if is_dataclass(hints[parameter.name])
    }

    @functools.wraps(command)
    def run(**values: Any) -> None:
        options = {name: _take(group, values) for name, group in groups.items()}
        command(GatewayOptions(_take(Choice, values)), **options, **values)

    parameters = []
    for parameter in own:
        hint = hints[parameter.name]
        if parameter.name in groups:
            parameters += _group_parameters(hint)
        else:
            parameters.append(
                parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
            )
    parameters += _CONNECTION_PARAMETERS
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _take(group: type[GroupT], values: dict[str, Any]) -> GroupT:
    """Returns a group of options, which are removed from the values of a command."""
    return group(**{field.name: values.pop(field.name) for field in fields(group)})


def _group_parameters(group: type[DataclassInstance]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


def _connection_option(flag: str, text: str, **settings: Any) -> Any:
    return typer.Option(flag, help=text, rich_help_panel=_PANEL, show_default=False, **settings)


@dataclass(frozen=True)
class _ConnectionOptions:
    """The options of every command that calls a gateway; the fields of `Choice`."""

    address: Annotated[
        str,
        _connection_option(
            "--address",
            "The gateway. Default: STRATA_ADDRESS, or the address in the data folder.",
            metavar="HOST:PORT|https://HOST",
        ),
    ] = ""
    api_key: Annotated[
        str,
        _connection_option(
            "--api-key",
            "The key. Default: STRATA_API_KEY, or the data folder's key.",
            metavar="KEY",
        ),
    ] = ""
    data: Annotated[
        Path | None,
        _connection_option(
            "--data",
            "The data folder. Default: STRATA_DATA, or the user's data folder.",
            metavar="FOLDER",
            parser=folder_of_option,
        ),
    ] = None
    tls: Annotated[
        bool,
        _connection_option("--tls", "Speak TLS, as with an https:// address; else STRATA_TLS."),
    ] = False
    ca_file: Annotated[
        Path | None,
        _connection_option(
            "--ca-file",
            "PEM file of trusted certificate authorities; else STRATA_TLS_CA_FILE.",
            metavar="FILE",
        ),
    ] = None


_CONNECTION_PARAMETERS = _group_parameters(_ConnectionOptions)
