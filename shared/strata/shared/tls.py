"""TLS of servers: credentials from PEM files, which are reloaded when they change."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from strata.protocol.errors import FailedPreconditionError
from strata.protocol.tls import check_pair, existing_file, read_authorities, read_file
from strata.shared.logs import get_logger

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The TLS files of a server.

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

    def context(self) -> ssl.SSLContext:
        """Returns a context of the standard library that reloads the files, as `credentials` do.

        Raises:
            FailedPreconditionError: As `credentials`.
        """
        reader = _Reader(self)
        current = self._load()
        context = current

        def choose(connection: ssl.SSLSocket | ssl.SSLObject, *_: object) -> None:
            # Called at the start of each handshake, with or without a server name.
            nonlocal current
            if reader.changed() is not None:
                current = self._load()
            connection.context = current

        context.sni_callback = choose
        return context

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


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
        stats = (existing_file(file).stat() for file in files if file is not None)
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in stats)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        tls = self._tls
        check_pair(tls.certificate, tls.key)
        roots = None if tls.client_ca is None else read_authorities(tls.client_ca)
        return grpc.ssl_server_certificate_configuration(
            [(read_file(tls.key), read_file(tls.certificate))], root_certificates=roots
        )
