"""Settings of clients: ``STRATA_…`` variables without a service's name."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from strata.shared.settings import EnvironmentSettings


class ClientSettings(EnvironmentSettings):
    """Address and keys of the server."""

    model_config = SettingsConfigDict(env_prefix="STRATA_", extra="ignore", frozen=True)

    address: str = Field(
        default="",
        description="host:port or https://host of the gateway; unset: that of the data folder.",
    )
    api_key: str = Field(
        default="", repr=False, description="API key; unset means the one of the data folder."
    )
    organization_key: str = Field(
        default="",
        repr=False,
        description="Organisation key, for `strata projects`, `organizations`, `keys`, `usage` and"
        " `reindex`; unset means the one of the data folder.",
    )
    data: Path | None = Field(
        default=None, description="The data folder; unset means the user's data directory."
    )
    tls: bool = Field(default=False, description="Speak TLS with the gateway.")
    tls_ca_file: Path | None = Field(
        default=None,
        description="PEM file of the trusted certificate authorities; unset means the public ones.",
    )
    tls_certificate_file: Path | None = Field(
        default=None,
        description="PEM file of the client's certificate, for a gateway that needs it.",
    )
    tls_key_file: Path | None = Field(
        default=None, description="PEM file of the private key of that certificate."
    )
