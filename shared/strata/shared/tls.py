"""TLS of servers and clients: credentials from PEM files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.logs import get_logger

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Files of a server that speaks TLS.

    Attributes:
        certificate: Its certificate, with the chain up to the authority.
        key: The private key of the certificate.
        client_ca: Certificates of authorities. If set, clients must present a certificate of one
            of these (mTLS).
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Returns credentials that reload the files when they change.

        New connections get the new certificate. If a new file cannot be used, this is logged and
        the former certificate stays in use.

        Raises:
            FailedPreconditionError: A file cannot be read, or certificate and key do not belong
                together.
        """
        reader = _Reader(self)
        return grpc.dynamic_ssl_server_credentials(
            reader.configuration,
            reader.changed,  # type: ignore[arg-type]  # may return None: nothing has changed
            require_client_authentication=self.client_ca is not None,
        )


class _Reader:
    """Reads the files of a server, and reads them again when they change."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._state = self._stamps()
        self.configuration = self._read()

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns the new contents of the files; None if they have not changed. Called by gRPC."""
        try:
            state = self._stamps()
            if state == self._state:
                return None
            configuration = self._read()
        except (OSError, FailedPreconditionError) as error:
            # Certificate and key are replaced one after the other; the next connection retries.
            _log.warning("the new TLS certificate cannot be used", error=str(error))
            return None
        self._state = state
        return configuration

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        files = (self._tls.certificate, self._tls.key, self._tls.client_ca)
        stats = (_existing(file).stat() for file in files if file is not None)
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in stats)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        tls = self._tls
        check_pair(tls.certificate, tls.key)
        roots = None if tls.client_ca is None else read_authorities(tls.client_ca)
        return grpc.ssl_server_certificate_configuration(
            [(_read(tls.key), _read(tls.certificate))], root_certificates=roots
        )


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a client speaks TLS.

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
        return grpc.ssl_channel_credentials(roots, _read(self.key), _read(self.certificate))


def check_pair(certificate: Path, key: Path) -> None:
    """Checks that a certificate and a private key are PEM files that belong together.

    Raises:
        FailedPreconditionError: They do not, or cannot be read.
    """
    _existing(certificate)
    _existing(key)
    try:
        # An empty password, or OpenSSL would ask for that of an encrypted key on the terminal.
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
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(_existing(file))
    except (ssl.SSLError, OSError) as error:
        raise _unusable(
            f"{file} must hold PEM certificates of authorities: {_reason(error)}."
        ) from error
    return _read(file)


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise _unusable(f"There is no file {file}, which the TLS settings name.")
    return file


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unusable(f"{file} cannot be read: {error.strerror}.") from error


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)


def _unusable(message: str) -> FailedPreconditionError:
    return FailedPreconditionError(message, reason=Reason.UNSPECIFIED)
