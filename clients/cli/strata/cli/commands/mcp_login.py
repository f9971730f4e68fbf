"""``strata mcp login`` and ``logout``: signs in to an MCP server, and out."""

from __future__ import annotations

import asyncio
import webbrowser
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

import typer

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.cli.client import GatewayClient
from strata.cli.commands.mcp_lookup import ServerArgument, server_named
from strata.cli.failures import UsageError
from strata.cli.options import GatewayOptions, JsonOption, online
from strata.cli.output import note, print_json, safe

_PATH = "/callback"
_WAIT_S = 600.0
_MAX_HEADER_BYTES = 16_384
_DONE = "The browser's part of the sign-in is done; see Strata's command for the result."
_REFUSED = "This does not belong to the sign-in that Strata's command started."


@online
def login(
    connection: GatewayOptions,
    server: ServerArgument,
    no_browser: Annotated[
        bool,
        typer.Option(
            "--no-browser", help="Open no browser; paste the address that a browser ends at."
        ),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65535, help="Port of the redirect address; 0: a free one."
        ),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Sign in to an MCP server with a browser; its tools then have your permissions there."""

    async def sign_in(client: GatewayClient) -> pb.McpServer:
        mcp_server = await server_named(client, server)
        async with _redirect_listener(port) as (redirect_uri, requests):
            request = pb.BeginMcpSignInRequest(
                mcp_server_id=mcp_server.id, redirect_uri=redirect_uri
            )
            sign_in_start = await client.mcp.BeginMcpSignIn(request)
            note(f"{safe(sign_in_start.issuer)} asks you to sign in. If you trust it, open:")
            note(safe(sign_in_start.authorization_url))
            if no_browser:
                parameters = await _pasted_parameters()
            else:
                # On a thread, because a browser in the terminal returns only when it is closed.
                opening = asyncio.create_task(
                    asyncio.to_thread(webbrowser.open, sign_in_start.authorization_url)
                )
                note("Waiting for the browser ...")
                parameters = await _redirect_parameters(requests, sign_in_start.state)
                await opening
        if parameters.get("error"):
            raise UsageError(f"The sign-in was refused: {safe(parameters['error'])[:200]}.")
        completion = pb.CompleteMcpSignInRequest(
            mcp_server_id=mcp_server.id,
            state=parameters.get("state", ""),
            code=parameters.get("code", ""),
            issuer=parameters.get("iss", ""),
        )
        return (await client.mcp.CompleteMcpSignIn(completion)).server

    mcp_server = connection.run(sign_in)
    if as_json:
        print_json(mcp_server)
        return
    typer.echo(f"Signed in to {safe(mcp_server.name)} at {safe(mcp_server.sign_in.issuer)}.")
    if not mcp_server.healthy:
        note(f"The server cannot be used yet: {safe(mcp_server.error)}")


@online
def logout(connection: GatewayOptions, server: ServerArgument) -> None:
    """Delete the tokens of an MCP server; its tools do not work until someone signs in."""

    async def forget(client: GatewayClient) -> str:
        mcp_server = await server_named(client, server)
        await client.mcp.ForgetMcpSignIn(pb.ForgetMcpSignInRequest(mcp_server_id=mcp_server.id))
        return mcp_server.name

    typer.echo(f"Nobody is signed in to {safe(connection.run(forget))} now.")


async def _pasted_parameters() -> Mapping[str, str]:
    address = await asyncio.to_thread(typer.prompt, "Address that the browser ended at")
    parameters = dict(parse_qsl(urlsplit(address.strip()).query))
    if not parameters.get("state"):
        raise UsageError("That address has no state parameter: paste the whole address.")
    return parameters


async def _redirect_parameters(
    requests: asyncio.Queue[_BrowserRequest], state: str
) -> Mapping[str, str]:
    """Waits for the browser's request with this state; returns its parameters.

    Raises:
        UsageError: There was none within ten minutes.
    """
    try:
        async with asyncio.timeout(_WAIT_S):
            while True:
                request = await requests.get()
                # Other programs on this machine may send requests, too.
                is_expected = request.parameters.get("state") == state
                request.expected.set_result(is_expected)
                if is_expected:
                    await request.answered.wait()
                    return request.parameters
    except TimeoutError:
        raise UsageError("Nobody has signed in within ten minutes.") from None


class _BrowserRequest:
    """A request to the redirect address.

    Attributes:
        parameters: The parameters of its query.
        expected: Set to whether the request belongs to the sign-in.
        answered: Set when the response has been sent.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.parameters = parameters
        self.expected: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.answered = asyncio.Event()


@asynccontextmanager
async def _redirect_listener(
    port: int,
) -> AsyncIterator[tuple[str, asyncio.Queue[_BrowserRequest]]]:
    """Serves the redirect address; yields the address and a queue of the requests to it."""
    requests: asyncio.Queue[_BrowserRequest] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
            parts = urlsplit(target)
            if method != "GET" or parts.path != _PATH:
                _respond(writer, "404 Not Found", _REFUSED)
                return
            request = _BrowserRequest(dict(parse_qsl(parts.query)))
            requests.put_nowait(request)
            if await request.expected:
                _respond(writer, "200 OK", _DONE)
            else:
                _respond(writer, "400 Bad Request", _REFUSED)
            await writer.drain()
            request.answered.set()
        except (ValueError, TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        except asyncio.LimitOverrunError:
            _respond(writer, "431 Request Header Fields Too Large", _REFUSED)
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(serve, "127.0.0.1", port, limit=_MAX_HEADER_BYTES)
    except OSError as error:
        raise UsageError(f"Port {port} cannot be used: {error.strerror}.") from None
    async with server:
        bound_port = server.sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{bound_port}{_PATH}", requests
        finally:
            while not requests.empty():
                requests.get_nowait().expected.set_result(False)


def _respond(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    body = text.encode()
    writer.write(
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )
