"""Entry point of ``strata``: imports the module of a command only when the command runs."""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import sys
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperCommand, TyperGroup

from strata.cli.failures import exit_code_of, reported_error, show_error

_RUN = "Run Strata"
_USE = "Agents and their memory"


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command of ``strata``, before its module is imported.

    Attributes:
        name: Name of the command.
        help: Its line in the list of commands.
        panel: Heading of its group in the list.
        module: Module of `strata.cli.commands` that defines ``app``, a `typer.Typer`.
    """

    name: str
    help: str
    panel: str
    module: str


ENTRIES = (
    CommandEntry("run", "Start Strata unless it runs, and chat with an agent.", _RUN, "server"),
    CommandEntry("up", "Start Strata in the foreground.", _RUN, "server"),
    CommandEntry("console", "Print a link that signs in to the web console.", _RUN, "console"),
    CommandEntry(
        "migrate", "Bring the schemas in a PostgreSQL of your own up to date.", _RUN, "server"
    ),
    CommandEntry(
        "bootstrap", "Make an organization key in a PostgreSQL of your own.", _RUN, "server"
    ),
    CommandEntry(
        "backup", "Write a backup of a data folder, even while Strata runs.", _RUN, "backup"
    ),
    CommandEntry("restore", "Check a backup, or make a data folder from it.", _RUN, "backup"),
    CommandEntry("projects", "List and create projects.", _RUN, "projects"),
    CommandEntry("keys", "Create, list and revoke keys of a project.", _RUN, "keys"),
    CommandEntry(
        "organizations", "List and create organizations, manage keys.", _RUN, "organizations"
    ),
    CommandEntry("usage", "Show runs and tokens of projects.", _RUN, "usage"),
    CommandEntry("status", "Show whether Strata runs, and which services answer.", _RUN, "status"),
    CommandEntry("top", "Show rates, waiting times and latencies, live.", _RUN, "top"),
    CommandEntry(
        "doctor", "Check this machine, and print how to fix what is wrong.", _RUN, "doctor"
    ),
    CommandEntry("chat", "Talk with an agent.", _USE, "chat"),
    CommandEntry("agents", "Create, show, change and delete agents.", _USE, "agents"),
    CommandEntry("groups", "Let several agents answer together.", _USE, "groups"),
    CommandEntry(
        "memory", "Show and edit memory blocks, explain and undo changes.", _USE, "memory"
    ),
    CommandEntry("folders", "Make folders of files, and give them to agents.", _USE, "folders"),
    CommandEntry("files", "Upload, open and search files.", _USE, "files"),
    CommandEntry("recall", "List, search, pin and export messages.", _USE, "recall"),
    CommandEntry("archival", "Store and search passages.", _USE, "archival"),
    CommandEntry(
        "reindex", "Rebuild an index while it serves, or change its model.", _USE, "reindex"
    ),
    CommandEntry("tools", "Add your own tools, try and search them.", _USE, "tools"),
    CommandEntry("mcp", "Use tools of MCP servers, and serve memory to MCP clients.", _USE, "mcp"),
    CommandEntry("runs", "Start, list, show, explain and cancel runs.", _USE, "runs"),
    CommandEntry("schedules", "Start runs at a set time, once or repeatedly.", _USE, "schedules"),
    CommandEntry("webhooks", "Notify other programs when runs end.", _USE, "webhooks"),
    CommandEntry("approvals", "List, show and answer requests for approval.", _USE, "approvals"),
    CommandEntry("prompts", "List and show the system prompts for new agents.", _USE, "prompts"),
    CommandEntry(
        "models", "List the chat models that agents can use, manage keys.", _USE, "models"
    ),
)


class LazyGroup(TyperGroup):
    """Lists the commands from a table, and imports only the one that runs.

    A `StrataError` ends the command with a message and an exit code: 1 for a failure, 2 for wrong
    usage, 3 if Strata cannot be reached.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for entry in ENTRIES:
            listed = TyperCommand(entry.name, help=entry.help, rich_help_panel=entry.panel)
            self.add_command(listed)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the name, the imported command and the rest of the arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, _load(name) if command is not None and name else command, rest

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Prints the help if there are no arguments, and exits with 0.

        Shell completion of the first word passes no arguments either, and gets no help.
        """
        if not args and not ctx.resilient_parsing:
            _print_help(ctx)
            ctx.exit(0)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except Exception as error:
            # The class is private to typer.
            if type(error).__name__ == "NoArgsIsHelpError":
                _print_help(getattr(error, "ctx"))  # noqa: B009
                raise typer.Exit(0) from error
            reported = reported_error(error)
            if reported is None:
                raise
            show_error(reported)
            raise typer.Exit(exit_code_of(reported)) from error
        return result


def _print_help(ctx: Any) -> None:
    # With rich, typer prints the help itself and returns nothing.
    if text := ctx.get_help():
        typer.echo(text)


def _load(name: str) -> Any:
    from strata.cli.grpc_log import quieten_grpc  # noqa: PLC0415 - `--help` does without

    quieten_grpc()
    [entry] = [candidate for candidate in ENTRIES if candidate.name == name]
    module = importlib.import_module(f"strata.cli.commands.{entry.module}")
    if not gc.isenabled():  # turned off in `strata.cli.entry`
        gc.freeze()
        gc.enable()
    command: Any = typer.main.get_command(module.app)
    # A module that defines several commands of `strata` has them in a group.
    command = getattr(command, "commands", {}).get(name, command)
    command.name = name
    _join_lines(command)
    return command


def _join_lines(command: Any) -> None:
    """Removes the line breaks within paragraphs of a help text.

    Typer removes them in the first paragraph only, and wraps the others a second time.
    """
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(
        # Lines of an example are indented.
        paragraph if "\n " in f"\n{paragraph}" else paragraph.replace("\n", " ")
        for paragraph in paragraphs
    )
    for child in getattr(command, "commands", {}).values():
        _join_lines(child)


app = typer.Typer(
    cls=LazyGroup,
    help="Strata: agents whose memory outlives the context window.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from strata.shared.release import release  # noqa: PLC0415 - start-up

        typer.echo(f"strata {release()}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the release and exit."
        ),
    ] = False,
) -> None:
    pass


def _null(mode: str) -> TextIO:
    return cast("TextIO", Path(os.devnull).open(mode, encoding="utf-8"))


def main() -> None:
    """Runs the command line."""
    # A stream that the caller has closed is None.
    sys.stdin = sys.stdin or _null("r")
    sys.stdout = sys.stdout or _null("w")
    sys.stderr = sys.stderr or _null("w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A character that the terminal cannot encode must not end a chat.
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="strata")
    except OSError as error:
        # Help is printed while the arguments are parsed, before a command runs.
        reported = reported_error(error)
        if reported is None:
            raise
        show_error(reported)
        sys.exit(exit_code_of(reported))


if __name__ == "__main__":
    main()
