"""``strata run``, ``up`` and ``migrate`` as typed; what they do is in modules of their names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata.cli.failures import UsageError
from strata.cli.settings import CliSettings

app = typer.Typer(add_completion=False)


DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="The data folder; else STRATA_DATA."),
]
PortOption = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="Preferred port; else STRATA_PORT, else 7600."),
]


@app.command()
def run(
    data: DataOption = None,
    port: PortOption = None,
    agent: Annotated[
        str, typer.Option("--agent", help="With whom to chat; made if there is none.")
    ] = "assistant",
) -> None:
    """Start Strata unless it runs, and chat with an agent. Strata ends with the chat.

    Without a terminal this is strata up.
    """
    from strata.cli.commands.chat import open_chat  # noqa: PLC0415 - loads gRPC
    from strata.cli.commands.run import run_run  # noqa: PLC0415 - loads every room
    from strata.embedded.data_folder import DataFolder  # noqa: PLC0415 - loads SQLAlchemy

    settings = CliSettings()
    folder = data or settings.data
    path = DataFolder(folder).path
    chosen = settings.port if port is None else port
    raise typer.Exit(run_run(folder, port=chosen, chat=lambda _: open_chat(path, agent)))


@app.command()
def up(
    data: DataOption = None,
    port: PortOption = None,
    split: Annotated[bool, typer.Option("--split", help="One process per room.")] = False,
) -> None:
    """Start Strata in the foreground: engines, rooms and gateway. Ctrl-C stops it."""
    from strata.cli.commands.up import run_up  # noqa: PLC0415 - loads every room

    settings = CliSettings()
    chosen = settings.port if port is None else port
    raise typer.Exit(run_up(data or settings.data, port=chosen, split=split))


@app.command()
def migrate(
    url: Annotated[
        str,
        typer.Option(
            "--url",
            metavar="URL",
            help="PostgreSQL URL of an administrator; else STRATA_DATABASE_ADMIN_URL.",
            show_default=False,
        ),
    ] = "",
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if something is behind.")
    ] = False,
) -> None:
    """Bring the schemas of all rooms in a PostgreSQL of your own up to date.

    Strata does so itself for the database in its data folder.
    """
    admin_url = url or CliSettings().database_admin_url
    if not admin_url:
        raise UsageError("Which database? Give --url, or set STRATA_DATABASE_ADMIN_URL.")
    from strata.cli.commands.migrate import run_migrate  # noqa: PLC0415 - loads every room
    from strata.cli.output import print_table  # noqa: PLC0415 - loads rich

    done = run_migrate(admin_url, check_only=check)
    print_table(
        ["room", "before", "now"], [(each.room, each.before, each.after) for each in done], empty=""
    )


@app.command()
def bootstrap(
    organization: Annotated[
        str, typer.Option("--organization", help="Name of the organisation.")
    ] = "local",
) -> None:
    """Make the first organisation, its project "default" and a key, and print the key.

    For a PostgreSQL of your own, migrated, with the settings of the gateway
    (STRATA_GATEWAY_…) in the environment. Strata does so itself for its data folder.
    """
    import asyncio  # noqa: PLC0415 - start-up

    from strata.gateway.bootstrap import ensure_local_project  # noqa: PLC0415 - loads SQLAlchemy
    from strata.gateway.settings import GatewaySettings  # noqa: PLC0415 - start-up

    project = asyncio.run(ensure_local_project(GatewaySettings(), organization=organization))
    typer.echo(project.api_key)
