"""Links that sign in to the web console of a local Strata."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from strata.client.data_folder import DataFolderReader
from strata.client.target import API_KEY_FILE
from strata.gateway.console.sign_in_links import LINK_LIFETIME_S, sign_in_link
from strata.gateway.http.console_path import CONSOLE_PATH

# A server that listens on all addresses is reached at this one.
_WILDCARDS = ("//0.0.0.0:", "//[::]:")
_LOOPBACK = "//127.0.0.1:"


def new_link(folder: DataFolderReader, http_url: str) -> str:
    """Returns a link that signs in, once and within `LINK_LIFETIME_S`, with the key of a folder.

    Args:
        folder: The data folder, whose secrets this process may read.
        http_url: Base URL of the HTTP port.

    Raises:
        OSError: The secrets cannot be read.
    """
    # As the server reads it: an editor may have added the end of the line.
    secret = (folder.secrets / "key-pepper").read_text().strip()
    api_key = (folder.secrets / API_KEY_FILE).read_text().strip()
    for wildcard in _WILDCARDS:
        http_url = http_url.replace(wildcard, _LOOPBACK)
    return sign_in_link(http_url, secret, api_key)


def show_console(console: Console, folder: DataFolderReader, http_url: str) -> None:
    """Prints the address of the console, and a new link that signs in to it."""
    minutes = round(LINK_LIFETIME_S / 60)
    console.print(
        f"Console in the browser: [bold]{escape(http_url)}{CONSOLE_PATH}[/]; this link signs in"
        f" once, within {minutes} minutes:"
    )
    console.print(new_link(folder, http_url), markup=False, highlight=False)
