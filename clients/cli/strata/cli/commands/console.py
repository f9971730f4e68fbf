"""``strata console``: prints a link that signs in to the web console."""

from __future__ import annotations

import typer

from strata.cli.commands.server import DataOption
from strata.cli.failures import UsageError
from strata.client.errors import UnreachableError
from strata.client.settings import ClientSettings

app = typer.Typer(add_completion=False)


@app.command()
def console(data: DataOption = None) -> None:
    """Print a link that signs in to the web console of the Strata on this machine.

    The link works once, within ten minutes. On other machines sign in with an API key.
    """
    from strata.cli.console_link import new_link  # noqa: PLC0415 - start-up
    from strata.client.data_folder import DataFolderReader  # noqa: PLC0415 - start-up

    folder = DataFolderReader(data or ClientSettings.from_environment().data)
    runtime = folder.running()
    if runtime is None or not runtime.http_url:
        raise UnreachableError(
            f"Strata is not running on {folder.path}. Start it with strata up; elsewhere, open"
            " /console at its HTTP port and sign in with an API key."
        )
    try:
        link = new_link(folder, runtime.http_url)
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "a file is not text"
        raise UsageError(
            f"The secrets of {folder.path} cannot be read: {problem}. Run this as the user"
            " who started Strata, or sign in with an API key."
        ) from error
    typer.echo(link)
