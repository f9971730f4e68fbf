"""Where the gateway is, and with which key: what is given, the environment, the data folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from strata.client.errors import UnreachableError
from strata.client.settings import ClientSettings
from strata.shared.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    Reason,
    UnauthenticatedError,
)

if TYPE_CHECKING:
    from strata.embedded.data_folder import DataFolder

API_KEY_FILE = "api-key"

_START_IT = "Start it with: strata up"
# Stands in the file until a start has got far enough to make a key.
_NO_KEY_YET = "none"


@dataclass(frozen=True, slots=True)
class Choice:
    """What a caller says about the connection; empty means nothing."""

    address: str = ""
    api_key: str = field(default="", repr=False)
    data: Path | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """How the caller gives an address and a key, for advice."""

    address: str = "the address"
    api_key: str = "api_key"


@dataclass(frozen=True, slots=True)
class Target:
    """The gateway to talk to.

    Attributes:
        address: Its gRPC target.
        api_key: Sent with each call.
        advice: What to do when nothing answers there.
    """

    address: str
    api_key: str = field(repr=False)
    advice: str


def find_target(choice: Choice, settings: ClientSettings, words: Words | None = None) -> Target:
    """Returns the gateway to talk to.

    A folder that is named by the caller comes before an address of the environment.
    The key of the data folder goes to the gateway of that folder only, never to an
    address that was given.

    Raises:
        UnreachableError: No address is given and nothing runs on the data folder.
        UnauthenticatedError: There is no key (``CREDENTIALS_MISSING``).
        PermissionDeniedError: The data folder belongs to somebody else.
        InvalidArgumentError: The address is not ``host:port``.
    """
    words = words or Words()
    by_folder = choice.data is not None and not choice.address
    api_key = choice.api_key or ("" if by_folder else settings.api_key)
    given = choice.address or ("" if by_folder else settings.address)
    if given:
        origin = words.address if choice.address else "STRATA_ADDRESS"
        address = checked_address(given)
        return Target(
            address,
            api_key or _folder_key(folder_of(choice, settings), address, words),
            f"Is {origin} right, and is Strata running there? {_START_IT}",
        )
    folder = folder_of(choice, settings)
    address = _running_address(folder)
    return Target(address, api_key or _folder_key(folder, address, words), _START_IT)


def folder_of(choice: Choice, settings: ClientSettings) -> DataFolder:
    """Returns the data folder that is meant; it need not exist."""
    from strata.embedded.data_folder import DataFolder  # noqa: PLC0415 - an address needs none

    return DataFolder(choice.data or settings.data)


def checked_address(address: str) -> str:
    """Returns a gRPC target.

    Raises:
        InvalidArgumentError: It is none, or asks for TLS.
    """
    bare = address.strip().removeprefix("http://").rstrip("/")
    if bare.startswith("https://"):
        raise InvalidArgumentError(
            "TLS is not spoken here. Give host:port of a gateway, or of a tunnel to it."
        )
    if bare.startswith(("unix:", "dns:")):
        return bare
    host, colon, port = bare.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise InvalidArgumentError(
            f"{address!r} is no address. Give host:port, such as 127.0.0.1:7600."
        )
    return bare


def _running_address(folder: DataFolder) -> str:
    try:
        runtime = folder.running()
        holder = folder.holder()
    except PermissionError as error:
        raise _foreign(folder) from error
    if runtime is not None:
        return checked_address(runtime.address)
    if holder is not None:
        raise UnreachableError(
            f"Strata is being started on {folder.path} by process {holder}. Try again shortly."
        )
    raise UnreachableError(f"Strata is not running on {folder.path}. {_START_IT}")


def _folder_key(folder: DataFolder, address: str, words: Words) -> str:
    try:
        runtime = folder.running()
        if runtime is not None and runtime.address == address:
            key = (folder.secrets / API_KEY_FILE).read_text().strip()
            if key and key != _NO_KEY_YET:
                return key
    except FileNotFoundError:
        pass
    except PermissionError as error:
        raise _foreign(folder) from error
    raise UnauthenticatedError(
        f"There is no API key for {address}. Give {words.api_key}, or set STRATA_API_KEY.",
        reason=Reason.CREDENTIALS_MISSING,
    )


def _foreign(folder: DataFolder) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"The data folder {folder.path} belongs to another user. Be that user, or set "
        "STRATA_ADDRESS and STRATA_API_KEY.",
        reason=Reason.UNSPECIFIED,
    )
