"""Address and key of the gateway: from arguments, then the environment, then the data folder."""

from __future__ import annotations

import ipaddress
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from strata.client.errors import UnreachableError
from strata.client.settings import ClientSettings
from strata.protocol.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    Reason,
    UnauthenticatedError,
)
from strata.protocol.tls import ClientTls

if TYPE_CHECKING:
    from strata.client.data_folder import DataFolderReader

API_KEY_FILE = "api-key"
ORGANIZATION_KEY_FILE = "organization-key"
_HTTP, _HTTPS = "http://", "https://"
_HTTPS_PORT = 443
# Characters that belong to other parts of a URL, such as a user or a query.
_NOT_IN_A_HOST = frozenset(" \t\n\r\f\v@?#/\\%")

_START_IT = "Start it with: strata up"
# Content of the key file until the first start has created a key.
_NO_KEY_YET = "none"


@dataclass(frozen=True, slots=True)
class Choice:
    """Connection options of a caller; empty values are unset.

    Attributes:
        tls: Speak TLS, to an address only; implied by ``https://`` and by a `ca_file`.
        ca_file: PEM file of trusted certificate authorities.
    """

    address: str = ""
    api_key: str = field(default="", repr=False)
    data: Path | None = None
    tls: bool = False
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class KeyKind:
    """One of the two kinds of keys in a data folder.

    Attributes:
        name: Its name in messages.
        file: Its file in the folder of secrets.
        variable: Its environment variable.
    """

    name: str
    file: str
    variable: str


PROJECT_KEY = KeyKind("API key", API_KEY_FILE, "STRATA_API_KEY")
ORGANIZATION_KEY = KeyKind("organization key", ORGANIZATION_KEY_FILE, "STRATA_ORGANIZATION_KEY")


@dataclass(frozen=True, slots=True)
class OptionNames:
    """Names of the caller's options for address and key, for error messages."""

    address: str = "the address"
    api_key: str = "api_key"


@dataclass(frozen=True, slots=True)
class Target:
    """Address and key of a gateway.

    Attributes:
        address: Its gRPC target.
        api_key: Sent with each call.
        advice: The remedy if nothing answers there.
        tls: TLS settings; None for no TLS.
    """

    address: str
    api_key: str = field(repr=False)
    advice: str
    tls: ClientTls | None = None


def find_target(
    choice: Choice,
    settings: ClientSettings,
    option_names: OptionNames | None = None,
    kind: KeyKind = PROJECT_KEY,
) -> Target:
    """Returns address and key of the gateway.

    A data folder in `choice` takes precedence over an address in the environment. The key of a
    data folder is sent only to the gateway of that folder, never to another address.

    Raises:
        UnreachableError: There is no address and nothing runs on the data folder.
        UnauthenticatedError: There is no key (``CREDENTIALS_MISSING``).
        PermissionDeniedError: The data folder belongs to another user.
        InvalidArgumentError: The address is neither ``host:port`` nor ``https://host``, the key has
            invalid characters, or the caller asks for TLS and there is no address.
    """
    option_names = option_names or OptionNames()
    by_folder = choice.data is not None and not choice.address
    api_key = _checked_key(choice.api_key or ("" if by_folder else settings.api_key), kind)
    address_text = choice.address or ("" if by_folder else settings.address)
    if address_text:
        origin = option_names.address if choice.address else "STRATA_ADDRESS"
        tls = _tls(choice, settings, address_text)
        address = checked_address(address_text, default_port=_HTTPS_PORT if tls else None)
        return Target(
            address,
            api_key or _folder_key(folder_of(choice, settings), address, option_names, kind),
            f"Is {origin} right, and is Strata running there? {_START_IT}. If it speaks TLS, give"
            " https:// before the address."
            if tls is None
            else f"Is {origin} right, does the gateway there speak TLS, and is its certificate for"
            " that name, of an authority in --ca-file (STRATA_TLS_CA_FILE) or a public one?",
            tls,
        )
    if choice.tls or choice.ca_file is not None:
        raise InvalidArgumentError(
            f"TLS is for a gateway with an address: give {option_names.address} as well. The Strata"
            " of a data folder is reached on this machine, without TLS."
        )
    folder = folder_of(choice, settings)
    address = _running_address(folder)
    return Target(
        address, api_key or _folder_key(folder, address, option_names, kind), _start(folder)
    )


def find_organization_target(
    choice: Choice,
    settings: ClientSettings,
    option_names: OptionNames | None = None,
    organization_key: str = "",
) -> Target:
    """Returns address and organization key of the gateway; otherwise like `find_target`.

    Args:
        choice: Connection options; their key is ignored.
        settings: Settings of the client.
        option_names: Names of the options, for error messages.
        organization_key: The caller's key; may be empty.
    """
    return find_target(
        replace(choice, api_key=organization_key),
        replace(settings, api_key=settings.organization_key),
        option_names,
        ORGANIZATION_KEY,
    )


def folder_of(choice: Choice, settings: ClientSettings) -> DataFolderReader:
    """Returns the data folder, which may not exist."""
    from strata.client.data_folder import DataFolderReader  # noqa: PLC0415 - an address needs none

    return DataFolderReader(choice.data or settings.data)


def checked_address(address: str, *, default_port: int | None = None) -> str:
    """Validates an address and returns it as a gRPC target.

    Args:
        address: ``host:port``, also with ``http://`` or ``https://`` before it, or a target of
            gRPC such as ``unix:/path``.
        default_port: Port of an address without one; None refuses such addresses.

    Raises:
        InvalidArgumentError: It is not an address.
    """
    scheme, bare = _split_scheme(address)
    bare = bare.rstrip("/")
    if not scheme and bare.startswith(("unix:", "dns:")):
        return bare
    if default_port is not None and _without_port(bare):
        bare = f"{bare}:{default_port}"
    host, colon, port = bare.rpartition(":")
    if not colon or not _is_host(host) or not _is_port(port):
        raise InvalidArgumentError(
            f"{_without_user(address)!r} is not an address. Give host:port, such as"
            " 127.0.0.1:7600 or [::1]:7600, or https://host of a gateway that speaks TLS."
        )
    return bare


def data_option(folder: DataFolderReader) -> str:
    """Returns the command-line option for a data folder, for hints to copy.

    It is empty for the default folder. STRATA_DATA is ignored, because it may not be set in the
    terminal that the hint is copied to.
    """
    from strata.client.data_folder import DataFolderReader  # noqa: PLC0415 - an address needs none

    usual = DataFolderReader(None).path == folder.path
    return "" if usual else f" --data {shlex.quote(str(folder.path))}"


def _start(folder: DataFolderReader) -> str:
    return f"{_START_IT}{data_option(folder)}"


def _split_scheme(address: str) -> tuple[str, str]:
    """Returns ``http://``, ``https://`` or nothing, and the rest; case-insensitive."""
    text = address.strip()
    for scheme in (_HTTP, _HTTPS):
        if text[: len(scheme)].lower() == scheme:
            return scheme, text[len(scheme) :]
    return "", text


def _is_host(host: str) -> bool:
    if host.startswith("["):
        try:
            return host.endswith("]") and bool(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            return False
    # Without brackets, the port of an IPv6 address is ambiguous.
    return bool(host) and ":" not in host and _NOT_IN_A_HOST.isdisjoint(host)


def _is_port(port: str) -> bool:
    return port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 1 << 16


def _without_user(address: str) -> str:
    """Returns an address for error messages, without a user and password in it."""
    before, at, host = address.rpartition("@")
    scheme = before.partition("://")[0] + "://" if "://" in before else ""
    return f"{scheme}...@{host}" if at else address


def _checked_key(key: str, kind: KeyKind) -> str:
    """Returns a key without surrounding white space.

    Raises:
        InvalidArgumentError: It has characters that neither a key nor a header can have.
    """
    key = key.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidArgumentError(
            f"The {kind.name} has blanks or invalid characters. Give the key as it was"
            " printed when it was created."
        )
    return key


def _without_port(bare: str) -> bool:
    if bare.startswith("["):
        return bare.endswith("]")
    return bool(bare) and ":" not in bare


def _tls(choice: Choice, settings: ClientSettings, address: str) -> ClientTls | None:
    """Returns the TLS settings for an address from options or environment; None for no TLS."""
    scheme, _ = _split_scheme(address)
    asked = choice.tls or choice.ca_file is not None
    if asked and scheme == _HTTP:
        raise InvalidArgumentError(
            f"{address!r} means a connection without TLS, but the options require TLS. Give"
            f" {_HTTPS} in its place."
        )
    if not asked and scheme != _HTTPS and (scheme == _HTTP or not _settings_ask(settings)):
        return None
    return ClientTls(
        choice.ca_file or settings.tls_ca_file,
        settings.tls_certificate_file,
        settings.tls_key_file,
    )


def _settings_ask(settings: ClientSettings) -> bool:
    return settings.tls or settings.tls_ca_file is not None


def _running_address(folder: DataFolderReader) -> str:
    try:
        runtime = folder.running()
        holder = folder.holder()
    except PermissionError as error:
        raise _owned_by_another_user(folder) from error
    if runtime is not None:
        return checked_address(runtime.address)
    if holder is not None:
        raise UnreachableError(
            f"Strata is being started on {folder.path} by process {holder}. Try again shortly."
        )
    raise UnreachableError(f"Strata is not running on {folder.path}. {_start(folder)}")


def _folder_key(
    folder: DataFolderReader, address: str, option_names: OptionNames, kind: KeyKind
) -> str:
    try:
        runtime = folder.running()
        if runtime is not None and runtime.address == address:
            key = (folder.secrets / kind.file).read_text().strip()
            if key and key != _NO_KEY_YET:
                return key
    except FileNotFoundError:
        pass
    except PermissionError as error:
        raise _owned_by_another_user(folder) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UnauthenticatedError(
            f"{folder.secrets / kind.file} is damaged: it is not a file with a key. Give"
            f" {option_names.api_key}, or delete it and start Strata again, which then creates"
            " another one.",
            reason=Reason.CREDENTIALS_MISSING,
        ) from error
    raise UnauthenticatedError(
        f"There is no {kind.name} for {address}. Give {option_names.api_key}, or set"
        f" {kind.variable}.",
        reason=Reason.CREDENTIALS_MISSING,
    )


def _owned_by_another_user(folder: DataFolderReader) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"The data folder {folder.path} belongs to another user. Run as that user, or set "
        "STRATA_ADDRESS and STRATA_API_KEY.",
        reason=Reason.UNSPECIFIED,
    )
