"""What the command line can be told from outside: ``STRATA_…`` without a room's name."""

from __future__ import annotations

import os

from pydantic import Field

from strata.client.settings import ClientSettings

_PASSED_ON = ("STRATA_", "OPENAI_", "ANTHROPIC_")


class CliSettings(ClientSettings):
    """Where Strata is, and how it is started here."""

    port: int = Field(
        default=7600, ge=0, le=65535, description="Preferred port of the gateway of `strata up`."
    )
    mcp_token: str = Field(
        default="",
        repr=False,
        description="Bearer token that `strata mcp serve --http` asks for; unset means a new one"
        " at each start.",
    )
    database_admin_url: str = Field(
        default="", repr=False, description="PostgreSQL URL that `strata migrate` connects with."
    )


def environment_of_rooms() -> dict[str, str]:
    """Returns what a room in a process of its own may see of our environment.

    Settings of rooms and of model providers, and what a process needs to run; no more.
    """
    wanted = {"HOME", "PATH", "TZ", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_PASSED_ON) or name in wanted
    }
