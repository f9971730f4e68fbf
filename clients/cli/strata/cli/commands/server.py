"""Arguments of ``strata run``, ``up``, ``migrate`` and ``bootstrap``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata.cli.arguments import folder_of_option
from strata.cli.confirmation import YesOption, confirm
from strata.cli.failures import UsageError
from strata.cli.settings import CliSettings
from strata.client.settings import ClientSettings
from strata.protocol.errors import InvalidArgumentError
from strata.shared.logs import LogFormat, LogLevel, configure_logging
from strata.shared.partitions import DEFAULT_PARTITION

app = typer.Typer(add_completion=False)

_FOR_OWN_POSTGRES = (
    "This command is for a PostgreSQL of your own and needs the settings of its gateway. The keys"
    " of a data folder are in its folder secrets; strata organizations keys create creates more."
)


DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FOLDER",
        help="The data folder; else STRATA_DATA.",
        parser=folder_of_option,
    ),
]
HostOption = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Address to listen on, 0.0.0.0 for all; else STRATA_GATEWAY_HOST, else 127.0.0.1.",
        show_default=False,
    ),
]
PortOption = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="Preferred port; else STRATA_PORT, else 7600."),
]


@app.command()
def run(
    data: DataOption = None,
    port: PortOption = None,
    host: HostOption = None,
    agent: Annotated[
        str, typer.Option("--agent", help="The agent to chat with; created if there is none.")
    ] = "assistant",
) -> None:
    """Start Strata unless it runs, and chat with an agent. Strata stops when the chat ends.

    Without a terminal, this runs strata up.
    """
    from strata.cli.commands.chat import open_chat  # noqa: PLC0415 - loads gRPC
    from strata.cli.commands.run import run_run  # noqa: PLC0415 - loads asyncpg
    from strata.standalone.data_folder import DataFolder  # noqa: PLC0415 - loads asyncpg

    settings, client_settings = CliSettings(), ClientSettings.from_environment()
    folder = data or client_settings.data
    path = DataFolder(folder).path
    chosen = settings.port if port is None else port
    raise typer.Exit(
        run_run(
            folder,
            port=chosen,
            host=host or settings.gateway_host,
            chat=lambda _: open_chat(path, agent),
        )
    )


@app.command()
def up(
    data: DataOption = None,
    port: PortOption = None,
    host: HostOption = None,
    split: Annotated[bool, typer.Option("--split", help="One process per service.")] = False,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            "--log-level",
            case_sensitive=False,
            help="Lowest level that is logged; else STRATA_LOG_LEVEL, else WARNING.",
            show_default=False,
        ),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            "--log-format",
            help="Format of the logs. Default: STRATA_LOG_FORMAT, or console.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start Strata in the foreground: engines, services and gateway. Ctrl-C stops it."""
    from strata.cli.commands.up import run_up  # noqa: PLC0415 - loads asyncpg

    settings, client_settings = CliSettings(), ClientSettings.from_environment()
    chosen = settings.port if port is None else port
    raise typer.Exit(
        run_up(
            data or client_settings.data,
            port=chosen,
            host=host or settings.gateway_host,
            split=split,
            log_level=log_level or settings.log_level,
            log_format=log_format or settings.log_format,
        )
    )


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
        bool, typer.Option("--check", help="Change nothing; fail if a schema is outdated.")
    ] = False,
    service: Annotated[
        str,
        typer.Option(
            "--service",
            metavar="NAME",
            help="With --to: the service whose schema is downgraded.",
            show_default=False,
        ),
    ] = "",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="REVISION",
            help="Undo the migrations of --service after this revision, with the rows of "
            "their tables; 'nothing' undoes all.",
            show_default=False,
        ),
    ] = "",
    yes: YesOption = False,
) -> None:
    """Bring the schemas of all services in a PostgreSQL of your own up to date.

    Strata does this itself for the database in its data folder. To migrate further partitions, set
    STRATA_PARTITION_DATABASE_ADMIN_URLS. With --to, the schema of one service is downgraded to an
    earlier revision, for an earlier release; stop the service first.
    """
    if bool(service) != bool(to):
        raise UsageError("--service and --to belong together.")
    if to and check:
        raise UsageError("--check changes nothing, so it cannot be used with --to.")
    settings = CliSettings()
    admin_url = url or settings.database_admin_url
    if not admin_url:
        raise UsageError("No database: give --url, or set STRATA_DATABASE_ADMIN_URL.")
    admin_urls = {DEFAULT_PARTITION: admin_url, **settings.partition_database_admin_urls}
    from strata.cli.commands.migrate import (  # noqa: PLC0415 - loads asyncpg
        migrations_of,
        run_downgrade,
        run_migrate,
    )
    from strata.cli.output import print_table  # noqa: PLC0415 - loads rich

    configure_logging(settings.log_level, settings.log_format)
    if to:
        migrations_of(service)
        question = f"Downgrade the schema of {service} to {to}? Rows of later tables are lost."
        confirm(question, yes=yes, otherwise="This destroys the rows of later tables.")
        done = run_downgrade(admin_urls, service, to)
    else:
        done = run_migrate(admin_urls, check_only=check)
    several = len(admin_urls) > 1
    print_table(
        [*(["partition"] if several else []), "service", "before", "now"],
        [
            (*([change.partition] if several else []), change.service, change.before, change.after)
            for change in done
        ],
        empty="",
    )


@app.command()
def bootstrap(
    organization: Annotated[
        str, typer.Option("--organization", help="Name of the organization.")
    ] = "local",
) -> None:
    """Create an organization unless there is one of this name, and print a new organization key.

    For a PostgreSQL of your own, migrated, with the settings of the gateway
    (STRATA_GATEWAY_…) in the environment. Strata does this itself for its data folder. The key
    creates projects and their keys: strata projects create, strata keys create. The key of the
    organization "local" also administers the installation.
    """
    import asyncio  # noqa: PLC0415 - start-up

    from strata.gateway.auth.bootstrap import ensure_organization_key  # noqa: PLC0415 - loads asyncpg
    from strata.gateway.settings import GatewaySettings  # noqa: PLC0415 - start-up

    settings = GatewaySettings()
    if not settings.database_url:
        raise UsageError("No database: set STRATA_GATEWAY_DATABASE_URL. " + _FOR_OWN_POSTGRES)
    try:
        settings.pepper()
    except (ValueError, OSError) as error:
        problem = f"The pepper of the gateway's keys cannot be read: {error}."
        raise UsageError(f"{problem} {_FOR_OWN_POSTGRES}") from error
    try:
        made = asyncio.run(ensure_organization_key(settings, organization=organization))
    except InvalidArgumentError as error:
        raise UsageError(error.message) from error
    typer.echo(made.secret)
