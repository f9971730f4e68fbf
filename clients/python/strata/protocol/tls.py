"""TLS of clients: credentials from PEM files, and the checks of such files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from strata.protocol.errors import FailedPreconditionError, Reason


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The TLS settings of a client.

    Attributes:
        ca: Certificates of the authorities that it trusts; None for those that come with gRPC.
        certificate: Its own certificate, for servers that ask for one; None for none.
        key: The private key of its certificate.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = field(default=None, repr=False)

    def credentials(self) -> grpc.ChannelCredentials:
        """Returns the credentials of a channel.

        Raises:
            FailedPreconditionError: A file cannot be read, or certificate and key do not belong
                together.
        """
        if (self.certificate is None) != (self.key is None):
            raise _unusable("A client certificate needs its key, and a key its certificate.")
        roots = None if self.ca is None else read_authorities(self.ca)
        if self.certificate is None or self.key is None:
            return grpc.ssl_channel_credentials(roots)
        check_pair(self.certificate, self.key)
        return grpc.ssl_channel_credentials(roots, read_file(self.key), read_file(self.certificate))


def check_pair(certificate: Path, key: Path) -> None:
    """Checks that a certificate and a private key are PEM files that belong together.

    Raises:
        FailedPreconditionError: They do not, or cannot be read.
    """
    existing_file(certificate)
    existing_file(key)
    try:
        # Without a password, OpenSSL would ask for the one of an encrypted key on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError) as error:
        raise _unusable(
            f"{certificate} and {key} must be a certificate and its private key without a password,"
            f" both PEM: {_reason(error)}."
        ) from error


def read_authorities(file: Path) -> bytes:
    """Returns the PEM certificates in a file.

    Raises:
        FailedPreconditionError: There are none, or it cannot be read.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(existing_file(file))
    except (ssl.SSLError, OSError) as error:
        raise _unusable(
            f"{file} must hold PEM certificates of authorities: {_reason(error)}."
        ) from error
    return read_file(file)


def existing_file(file: Path) -> Path:
    """Returns a path that names a file.

    Raises:
        FailedPreconditionError: There is no such file.
    """
    if not file.is_file():
        raise _unusable(f"There is no file {file}, which the TLS settings name.")
    return file


def read_file(file: Path) -> bytes:
    """Returns the content of a file.

    Raises:
        FailedPreconditionError: It cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unusable(f"{file} cannot be read: {error.strerror}.") from error


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)


def _unusable(message: str) -> FailedPreconditionError:
    return FailedPreconditionError(message, reason=Reason.UNSPECIFIED)
