"""Fetches URLs with limits on time, redirects, headers and the size of the body.

Redirects are followed here, so that each is checked like the first URL. The connection goes to a
checked address, while Host, SNI and certificate verification use the name. Proxies, cookies and
``.netrc`` are not used; ``SSL_CERT_FILE`` names additional certificates.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Self

import httpx2

from strata.shared.web.addresses import Address
from strata.shared.web.errors import FetchError, ForbiddenUrlError
from strata.shared.web.system_certificates import system_ssl_context
from strata.shared.web.url_guard import TargetCheck, UrlTarget, parse_url

_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_MOST_ADDRESSES = 4
_CHUNK_BYTES = 64 * 1024
_KINDS = {"image": "a picture", "video": "a film", "audio": "a recording", "font": "a font"}
# The encodings to accept: those whose decompression is bounded here.
_ENCODINGS = frozenset(("gzip", "deflate"))


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of fetching one URL.

    Attributes:
        total_s: Seconds in all: name resolution, redirects and the body.
        connect_s: Seconds to connect to one address.
        redirects: Maximum number of redirects that are followed.
        header_bytes: Maximum bytes of an answer's headers.
        body_bytes: Maximum bytes of the decompressed body; the rest is cut off.
        body_bytes_of: Other limits, by content type.
    """

    total_s: float = 20.0
    connect_s: float = 5.0
    redirects: int = 5
    header_bytes: int = 64 * 1024
    body_bytes: int = 2 * 1024 * 1024
    body_bytes_of: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer of a server.

    Attributes:
        url: The final URL, after redirects.
        content_type: Lower-case, without parameters; empty if the answer has none.
        charset: The encoding that the server names; empty if none.
        body: The decompressed body.
        truncated: Whether the body was cut off at the limit.
    """

    url: str
    status: int
    content_type: str
    charset: str
    body: bytes
    truncated: bool

    @property
    def status_text(self) -> str:
        """The status with its name: ``404 Not Found``."""
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return str(self.status)


class Fetcher:
    """Fetches URLs.

    Args:
        admission: Checks targets and resolves their addresses.
        limits: Limits for each URL.
        ssl_context: Verifies servers; by default with the certificates of the system.
        user_agent: The User-Agent header.
    """

    def __init__(
        self,
        admission: TargetCheck,
        limits: FetchLimits | None = None,
        *,
        ssl_context: ssl.SSLContext | None = None,
        user_agent: str = "Strata",
    ) -> None:
        self._admission = admission
        self._limits = limits or FetchLimits()
        self._user_agent = user_agent
        # Connections are not kept: the pool would reuse one by its address, for another name.
        self._transport = httpx2.AsyncHTTPTransport(
            verify=ssl_context or system_ssl_context(),
            trust_env=False,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes open connections."""
        await self._transport.aclose()

    async def fetch(
        self,
        url: str,
        *,
        accept: str = "*/*",
        takes: Callable[[str], bool] | None = None,
        credentials: Mapping[str, str] | None = None,
        content: bytes | None = None,
        content_type: str = "application/json",
        reads_body: bool = True,
    ) -> Fetched:
        """Fetches a URL, following redirects.

        Args:
            url: An http or https URL.
            accept: Content types to ask for.
            takes: Returns whether a content type is acceptable; asked for successful answers only.
            credentials: Headers that are sent to the first origin only.
            content: Body of a POST request, whose answer must not redirect; None for GET.
            content_type: Content type of that body.
            reads_body: Whether to read the body of the answer; otherwise it is empty in the result,
                and neither its time nor its form matters.

        Raises:
            ForbiddenUrlError: The URL, or one that it redirects to, may not be reached.
            FetchError: There is no answer, it is broken or not acceptable, there are too many
                redirects, or the time is over.
        """
        headers = {"Accept": accept}
        if content is not None:
            headers["Content-Type"] = content_type
        try:
            async with asyncio.timeout(self._limits.total_s):
                return await self._follow(
                    parse_url(url), headers, dict(credentials or {}), content, takes, reads_body
                )
        except (TimeoutError, httpx2.TimeoutException):
            raise FetchError(
                f"The server did not answer in full within {self._limits.total_s:g} seconds."
            ) from None
        except httpx2.DecodingError:
            raise FetchError("The server's answer cannot be decompressed.") from None
        except (httpx2.RequestError, httpx2.InvalidURL, OSError, ssl.SSLError) as error:
            raise FetchError(_words(error)) from error

    async def _follow(
        self,
        target: UrlTarget,
        headers: Mapping[str, str],
        credentials: dict[str, str],
        content: bytes | None,
        takes: Callable[[str], bool] | None,
        reads_body: bool,
    ) -> Fetched:
        addresses = await self._admission.resolve(target)
        for _ in range(self._limits.redirects + 1):
            response = await self._send(target, addresses, {**headers, **credentials}, content)
            try:
                location = response.headers.get("location")
                if response.status_code not in _REDIRECTS or not location:
                    return await self._read(target, response, takes, reads_body)
            finally:
                await response.aclose()
            if content is not None:
                raise FetchError("The server redirects a request that carries data.")
            following, addresses = await self._redirected(target, location)
            if credentials and target.scheme == "https" and following.scheme == "http":
                raise ForbiddenUrlError("The server redirects from https to http.")
            if following.origin != target.origin:
                credentials = {}
            target = following
        raise FetchError(f"The server redirects more than {self._limits.redirects} times.")

    async def _redirected(
        self, target: UrlTarget, location: str
    ) -> tuple[UrlTarget, list[Address]]:
        # The error does not repeat the location, which is untrusted text.
        try:
            following = target.join(location)
            return following, await self._admission.resolve(following)
        except ForbiddenUrlError:
            raise ForbiddenUrlError(
                "The server redirects to an address that may not be reached from here."
            ) from None
        except FetchError:
            raise FetchError("The server redirects to a host that cannot be found.") from None

    async def _send(
        self,
        target: UrlTarget,
        addresses: list[Address],
        headers: Mapping[str, str],
        content: bytes | None,
    ) -> httpx2.Response:
        failure: Exception | None = None
        for address in addresses[:_MOST_ADDRESSES]:
            request = httpx2.Request(
                "GET" if content is None else "POST",
                httpx2.URL(
                    scheme=target.scheme,
                    host=str(address),
                    port=target.port,
                    raw_path=target.path.encode("ascii"),
                ),
                headers={
                    "Host": target.authority,
                    "User-Agent": self._user_agent,
                    "Accept-Encoding": "gzip, deflate",
                    "Connection": "close",
                    **headers,
                },
                content=content,
                extensions={"timeout": self._timeouts(), "sni_hostname": target.host},
            )
            try:
                return await self._transport.handle_async_request(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
        assert failure is not None
        if isinstance(failure, httpx2.ConnectTimeout):
            raise FetchError("The server cannot be reached: it does not answer.")
        raise failure

    def _timeouts(self) -> dict[str, float]:
        total = self._limits.total_s
        return {
            "connect": min(self._limits.connect_s, total),
            "read": total,
            "write": total,
            "pool": total,
        }

    async def _read(
        self,
        target: UrlTarget,
        response: httpx2.Response,
        takes: Callable[[str], bool] | None,
        reads_body: bool,
    ) -> Fetched:
        size = sum(len(name) + len(value) for name, value in response.headers.raw)
        if size > self._limits.header_bytes:
            raise FetchError("The headers of the server's answer are too long.")
        content_type, charset = _content_type(response.headers.get("content-type", ""))
        if takes is not None and response.is_success and not takes(content_type):
            raise FetchError(f"The URL leads to {_kind(content_type)}, which cannot be read.")
        limit = self._limits.body_bytes_of.get(content_type, self._limits.body_bytes)
        body = bytearray()
        if reads_body:
            _check_encoding(response.headers.get("content-encoding", ""))
            async for chunk in response.aiter_bytes(_CHUNK_BYTES):
                body += chunk
                if len(body) > limit:
                    break
        return Fetched(
            url=target.url,
            status=response.status_code,
            content_type=content_type,
            charset=charset,
            body=bytes(body[:limit]),
            truncated=len(body) > limit,
        )


def _content_type(header: str) -> tuple[str, str]:
    name, _, rest = header.partition(";")
    for parameter in rest.split(";"):
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "charset":
            return name.strip().lower(), value.strip().strip("\"'").lower()
    return name.strip().lower(), ""


def _kind(content_type: str) -> str:
    # The content type of the server is not repeated, because it is untrusted text.
    return _KINDS.get(content_type.partition("/")[0], "a file of some other type")


def _check_encoding(header: str) -> None:
    encodings = [part.strip().lower() for part in header.split(",")]
    encodings = [name for name in encodings if name not in ("", "identity")]
    if len(encodings) > 1 or not _ENCODINGS.issuperset(encodings):
        raise FetchError("The server's answer has a content encoding that was not requested.")


def _words(error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"The server's certificate is not valid: {cause.verify_message}."
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx2.ConnectError):
        return "The server cannot be reached."
    return "The server's answer ended early or is not valid HTTP."
