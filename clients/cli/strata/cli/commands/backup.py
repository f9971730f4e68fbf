"""``strata backup`` and ``strata restore``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli.commands.server import DataOption
from strata.cli.failures import UsageError
from strata.client.settings import ClientSettings

if TYPE_CHECKING:
    from strata.standalone.backup.manifest import Manifest

app = typer.Typer(add_completion=False)

_MB = 1_000_000


@app.command()
def backup(
    target: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder to create.", show_default=False)
    ],
    data: DataOption = None,
) -> None:
    """Write a backup of a data folder into a new folder, even while Strata runs.

    It contains the database and all secrets, including the encryption keys: protect it like the
    data folder. The vector index is left out; it is rebuilt after a restore.
    """
    import asyncio  # noqa: PLC0415 - start-up

    from strata.standalone.backup.writing import write_backup  # noqa: PLC0415 - loads asyncpg
    from strata.standalone.data_folder import DataFolder  # noqa: PLC0415 - loads asyncpg

    folder = DataFolder(data or ClientSettings.from_environment().data)
    manifest = asyncio.run(write_backup(folder, target.absolute()))
    typer.echo(f"{_described(manifest)} of {folder.path} are in {target.absolute()}.")
    typer.echo("It contains the keys of this Strata. Check it with strata restore --check.")


@app.command()
def restore(
    source: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="The backup.", show_default=False)
    ],
    data: DataOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the backup; change nothing.")
    ] = False,
) -> None:
    """Make a data folder from a backup, or check that this could be done.

    The data folder must not exist, or be empty: nothing is overwritten. The check compares the
    hash of every file, loads the database into a temporary folder and counts its rows.
    """
    import asyncio  # noqa: PLC0415 - start-up

    from strata.client.target import data_option  # noqa: PLC0415 - start-up
    from strata.standalone.backup.restoring import (  # noqa: PLC0415 - loads asyncpg
        check_backup,
        restore_backup,
    )
    from strata.standalone.data_folder import DataFolder  # noqa: PLC0415 - loads asyncpg

    if check and data is not None:
        raise UsageError("--check restores into no data folder, so it cannot be used with --data.")
    if check:
        manifest = asyncio.run(check_backup(source.absolute()))
        typer.echo(f"The backup of {manifest.create_time} is complete: {_described(manifest)}.")
        return
    folder = DataFolder(data or ClientSettings.from_environment().data)
    manifest = asyncio.run(restore_backup(source.absolute(), folder.path))
    typer.echo(f"{_described(manifest)} are restored into {folder.path}.")
    typer.echo(f"Start it with strata up{data_option(folder)}. It builds the vector index anew.")


def _described(manifest: Manifest) -> str:
    rows = sum(manifest.rows.values())
    return f"{rows} rows in {len(manifest.rows)} tables ({manifest.size / _MB:.1f} MB)"
