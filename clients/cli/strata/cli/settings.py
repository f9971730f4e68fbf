"""Settings that only the command line has: ``STRATA_…`` variables."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from strata.client.settings import PREFIX
from strata.shared.logs import LogFormat, LogLevel
from strata.shared.settings import EnvironmentSettings


class CliSettings(EnvironmentSettings):
    """Settings of commands that start servers. The settings of Python programs apply as well."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="ignore", frozen=True
    )

    port: int = Field(
        default=7600, ge=0, le=65535, description="Preferred port of the gateway of `strata up`."
    )
    gateway_host: str = Field(
        default="127.0.0.1",
        description="Address that the gateway of `strata up` listens on; 0.0.0.0 for all.",
    )
    log_level: LogLevel = Field(
        default="WARNING", description="Lowest level that `strata up` and its services log."
    )
    log_format: LogFormat = Field(
        default="console",
        description="Form of the logs of `strata up` and its services: console or json.",
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
    partition_database_admin_urls: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Those of further partitions, by name: JSON, or one variable each, such as"
        " …__P1.",
    )
