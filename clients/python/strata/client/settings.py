"""Settings of clients: ``STRATA_…`` variables without a service's name."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Self

from strata.protocol.errors import FieldViolation, WrongSettingError

PREFIX = "STRATA_"

DATA_FOLDER_OF_ROOT = Path("/var/lib/strata")
_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"0", "false", "f", "no", "n", "off"})


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Address and keys of the server."""

    address: str = field(
        default="",
        metadata={
            "description": "host:port or https://host of the gateway; unset: that of the data"
            " folder."
        },
    )
    api_key: str = field(
        default="",
        repr=False,
        metadata={"description": "API key; unset means the one of the data folder."},
    )
    organization_key: str = field(
        default="",
        repr=False,
        metadata={
            "description": "Organization key, for `strata projects`, `organizations`, `keys`,"
            " `usage` and `reindex`; unset means the one of the data folder."
        },
    )
    data: Path | None = field(
        default=None,
        metadata={"description": "The data folder; unset means the user's data directory."},
    )
    tls: bool = field(default=False, metadata={"description": "Speak TLS with the gateway."})
    tls_ca_file: Path | None = field(
        default=None,
        metadata={
            "description": "PEM file of the trusted certificate authorities; unset means the"
            " public ones."
        },
    )
    tls_certificate_file: Path | None = field(
        default=None,
        metadata={
            "description": "PEM file of the client's certificate, for a gateway that needs it."
        },
    )
    tls_key_file: Path | None = field(
        default=None, metadata={"description": "PEM file of the private key of that certificate."}
    )

    @classmethod
    def from_environment(cls) -> Self:
        """Reads the environment; an empty variable counts as unset.

        Raises:
            WrongSettingError: ``STRATA_TLS`` is neither true nor false.
        """
        values: dict[str, object] = {}
        for one in fields(cls):
            text = os.environ.get(PREFIX + one.name.upper(), "")
            if not text:
                continue
            if one.type == "bool":
                values[one.name] = _switch(PREFIX + one.name.upper(), text)
            else:
                values[one.name] = Path(text) if one.type == "Path | None" else text
        return cls(**values)  # type: ignore[arg-type]  # converted by the fields' types


def default_data_folder() -> Path:
    """Returns the default data folder of a local Strata.

    This is the user's data directory, which ``XDG_DATA_HOME`` can move. For root it is the
    system's directory for the state of services, because the user as which PostgreSQL then runs
    cannot enter root's home.
    """
    if sys.platform == "linux" and os.geteuid() == 0:
        return DATA_FOLDER_OF_ROOT
    # The XDG specification has relative paths ignored.
    configured = os.environ.get("XDG_DATA_HOME", "").strip()
    if configured and Path(configured).is_absolute():
        return Path(configured) / "strata"
    usual = "Library/Application Support" if sys.platform == "darwin" else ".local/share"
    return Path.home() / usual / "strata"


def _switch(variable: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        violation = FieldViolation(variable, "must be true or false")
        raise WrongSettingError(
            f"A setting is wrong. {variable}: {violation.description}.", violations=[violation]
        )
    return word in _TRUE
