"""Opens transports to MCP servers (stdio, SSE, streamable HTTP), as the operator allows.

Importing the SDK takes a second, and most processes never use an MCP server. So the SDK is imported
when the first session is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2

from strata.shared.context import current_project, require_caller
from strata.shared.web.errors import FetchError
from strata.shared.web.url_guard import TargetCheck, parse_url
from strata.tool_execution.domain.mcp import McpServer, Transport, stdio_disabled
from strata.tool_execution.mcp.errors import ConnectError
from strata.tool_execution.mcp.http import SIGN_IN, GuardedTransport, guarded_client
from strata.tool_execution.mcp.program_user import ProgramUser, ProgramUsers
from strata.tool_execution.mcp.sign_in import SignedInAuth, SignIns
from strata.tool_execution.mcp.streams import Opener, Streams, status_text

if TYPE_CHECKING:
    from strata.tool_execution.mcp.oauth import ClientCredentialsAuth

# Longer than the longest call: a response that takes longer ends the session.
_READ_S = 660.0


@dataclass(frozen=True, slots=True)
class McpTransports:
    """Opens transports to MCP servers within the operator's limits.

    Attributes:
        programs: Whether servers may be programs on this host (stdio).
        admission: Checks the addresses of servers (HTTP).
        message_bytes: Maximum size of a message in bytes.
        connect_s: Seconds to connect (HTTP).
        ssl_context: Verifies servers.
        sign_ins: Tokens of servers to which people sign in.
        program_users: Users that programs run as; None for the user of this process, if it is not
            root.
    """

    programs: bool
    admission: TargetCheck
    message_bytes: int
    connect_s: float
    ssl_context: ssl.SSLContext
    sign_ins: SignIns | None = None
    program_users: ProgramUsers | None = None

    async def check(self, server: McpServer) -> None:
        """Checks that a server may be used. A name that cannot be resolved now is accepted.

        Raises:
            FailedPreconditionError: The operator does not allow programs (``MCP_STDIO_DISABLED``).
            ForbiddenUrlError: A URL is invalid, or its address is not allowed.
        """
        if server.transport is Transport.STDIO:
            if not self.programs:
                raise stdio_disabled(server.name)
            return
        with contextlib.suppress(FetchError):
            await self.admission.resolve(parse_url(server.url))
        if server.client_credentials is not None:
            with contextlib.suppress(FetchError):
                await self.admission.resolve(parse_url(server.client_credentials.issuer))
        if server.oauth is not None and server.oauth.issuer:
            with contextlib.suppress(FetchError):
                await self.admission.resolve(parse_url(server.oauth.issuer))

    def transport(self) -> GuardedTransport:
        """Returns a new HTTP transport."""
        return GuardedTransport(self.admission, self.message_bytes, self.ssl_context)

    def opener(
        self, server: McpServer, secrets: Mapping[str, str], tokens: MutableMapping[str, str]
    ) -> Opener:
        """Returns a function that opens the streams to a server.

        Args:
            server: The server.
            secrets: All secrets that it needs, by name.
            tokens: Receives the tokens of the server by kind, for redaction.
        """
        if server.transport is Transport.STDIO:
            project = current_project()
            return lambda: self._program(server, secrets, project)
        auth = self._auth(server, secrets, tokens)
        return lambda: self._http(server, secrets, auth)

    @contextlib.asynccontextmanager
    async def _program(
        self, server: McpServer, secrets: Mapping[str, str], project: str
    ) -> AsyncIterator[Streams]:
        if not self.programs:
            raise ConnectError(stdio_disabled(server.name).message)
        from strata.tool_execution.mcp.stdio import open_stdio  # noqa: PLC0415 - the SDK

        secret_variables = {key: secrets[name] for key, name in server.environment_secrets.items()}
        environment = {**server.environment, **secret_variables}
        async with contextlib.AsyncExitStack() as stack:
            user = await self._assigned_user(stack, project, server.id)
            opened = open_stdio(server.command, environment, self.message_bytes, user)
            incoming, outgoing, program = await stack.enter_async_context(opened)

            def failure_details() -> str:
                if program.too_long:
                    return f"a message exceeds {self.message_bytes} bytes"
                errors = program.error_output
                output = f"its output: {errors[-500:]}" if errors else ""
                end = f"the program {program.end}" if program.end else ""
                return "; ".join(text for text in (end, output) if text)

            yield Streams(incoming, outgoing, failure_details, ended=lambda: program.ended)

    async def _assigned_user(
        self, stack: contextlib.AsyncExitStack, project: str, server_id: str
    ) -> ProgramUser | None:
        """Returns the user of a server's program; the stack releases it."""
        if self.program_users is None:
            return None
        assigned = self.program_users.assigned(project, server_id)
        # On a thread: it waits for a lock, and may remove a large folder.
        entering = asyncio.create_task(asyncio.to_thread(stack.enter_context, assigned))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            # The stack must not be closed before the thread has entered the context.
            await asyncio.wait([entering])
            raise
        except OSError as error:
            raise ConnectError(f"it has no home folder: {error.strerror}") from None

    @contextlib.asynccontextmanager
    async def _http(
        self,
        server: McpServer,
        secrets: Mapping[str, str],
        auth: ClientCredentialsAuth | SignedInAuth | None,
    ) -> AsyncIterator[Streams]:
        from mcp.client.sse import sse_client  # noqa: PLC0415 - the SDK
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        secret_headers = {key: secrets[name] for key, name in server.header_secrets.items()}
        sent = {**server.headers, **secret_headers}
        if server.bearer_secret:
            sent["Authorization"] = f"Bearer {secrets[server.bearer_secret]}"
        transport = self.transport()

        def failure_details() -> str:
            status = transport.last_status
            if auth is not None and auth.failed:
                return ""
            if status in SIGN_IN and auth is not None:
                return f"it answered {status_text(status)} to the token"
            if status in SIGN_IN:
                return (
                    f"it answered {status_text(status)}: store a token as a secret and name it as"
                    " bearer_secret, give client_credentials, or set oauth and have a person sign"
                    " in"
                )
            return f"it answered {status_text(status)}" if status >= 400 else ""

        if server.transport is Transport.SSE:

            def client_of(
                headers: dict[str, str] | None = None,
                timeout: httpx2.Timeout | None = None,
                auth: httpx2.Auth | None = None,
            ) -> httpx2.AsyncClient:
                return guarded_client(transport, sent, self.connect_s, _READ_S, auth)

            async with sse_client(server.url, httpx_client_factory=client_of, auth=auth) as (
                incoming,
                outgoing,
            ):
                yield Streams(incoming, outgoing, failure_details, lambda: transport.last_status)
            return
        async with (
            guarded_client(transport, sent, self.connect_s, _READ_S, auth) as client,
            streamable_http_client(
                server.url, http_client=client, max_sse_event_size=self.message_bytes
            ) as (incoming, outgoing),
        ):
            yield Streams(incoming, outgoing, failure_details, lambda: transport.last_status)

    def _auth(
        self, server: McpServer, secrets: Mapping[str, str], tokens: MutableMapping[str, str]
    ) -> ClientCredentialsAuth | SignedInAuth | None:
        if server.oauth is not None and self.sign_ins is not None:
            return SignedInAuth(
                server, self.sign_ins, current_project(), tokens, require_caller().partition
            )
        credentials = server.client_credentials
        if credentials is None:
            return None
        from strata.tool_execution.mcp.oauth import (  # noqa: PLC0415 - the SDK
            ClientCredentialsAuth,
        )

        secret = secrets[credentials.client_secret]
        return ClientCredentialsAuth(server.url, credentials, secret, tokens)
