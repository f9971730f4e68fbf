"""``strata tools``: creates, lists, runs and deletes tools, and stores their secrets."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.cli.agent_names import complete_agent
from strata.cli.chat.prompt import interruptible
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.failures import UsageError
from strata.cli.options import GatewayOptions, JsonOption, LimitOption, not_blank, online
from strata.cli.output import note, print_fields, print_json, print_listing, print_text, safe, when
from strata.client.tools import EFFECTS, returned
from strata.shared.convert.enums import enum_name
from strata.shared.one_line import clipped

app = typer.Typer(
    help="Add your own tools, try them, and manage their secrets.",
    no_args_is_help=True,
    add_completion=False,
)
secret = typer.Typer(help="Store and delete secrets of tools.", no_args_is_help=True)
app.add_typer(secret, name="secret")

_DESCRIPTION_CHARS = 80
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the tool.")]
SecretArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the environment variable.")
]


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """What a tool gets in the sandbox."""

    secrets: Annotated[
        list[str] | None,
        typer.Option("--secret", help="Name of a secret that the tool gets; repeatable."),
    ] = None
    packages: Annotated[
        list[str] | None,
        typer.Option("--package", help='A package that it needs, "name>=1,<2"; repeatable.'),
    ] = None
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help='A host that it may reach by http(s), "api.example.com", or "*.example.com" for'
            " all subdomains; may be repeated. Without any it has no network.",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How the calls of a tool are run."""

    effect: Annotated[
        str,
        typer.Option(
            "--effect",
            help="Effect of a call: read-only, idempotent or side-effect. A call with unknown"
            " outcome is repeated only if it is read-only or idempotent.",
        ),
    ] = ""
    parallel: Annotated[
        bool, typer.Option("--parallel", help="Its calls may run at the same time.")
    ] = False
    approval: Annotated[
        bool, typer.Option("--approval", help="Every call waits until a person has approved it.")
    ] = False
    return_limit: Annotated[
        int, typer.Option("--return-limit", min=1, help="Maximum number of characters of a return.")
    ] = 50_000


_NO_SANDBOX_OPTIONS = SandboxOptions()
_DEFAULT_CALL_OPTIONS = CallOptions()


@app.command("add")
@online
def add(
    connection: GatewayOptions,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Python file with one public function.")
    ],
    name: Annotated[
        str, typer.Option("--name", help="Name of the tool. Default: the function's name.")
    ] = "",
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag; repeatable.")] = None,
    by_client: Annotated[
        bool,
        typer.Option(
            "--client",
            help="A client program runs it and answers its calls; only name, arguments and"
            " description of the file are stored.",
        ),
    ] = False,
    sandbox: SandboxOptions = _NO_SANDBOX_OPTIONS,
    calls: CallOptions = _DEFAULT_CALL_OPTIONS,
    as_json: JsonOption = False,
) -> None:
    """Add a tool, or a new version of it, from a file. The file is not run."""
    if calls.effect not in EFFECTS:
        raise UsageError("--effect must be read-only, idempotent or side-effect.")
    request = pb.UpsertToolRequest(
        request_id=new_request_id(),
        source_code=_read(file),
        name=name,
        tags=tag or [],
        secret_names=sandbox.secrets or [],
        pip_requirements=sandbox.packages or [],
        allowed_hosts=sandbox.hosts or [],
        effect=EFFECTS[calls.effect],
        enable_parallel_execution=calls.parallel,
        default_requires_approval=calls.approval,
        return_char_limit=calls.return_limit,
        type=tool_pb2.TOOL_TYPE_CLIENT if by_client else tool_pb2.TOOL_TYPE_CUSTOM,
    )

    async def put(client: GatewayClient) -> pb.UpsertToolResponse:
        return await client.tools.UpsertTool(request)

    tool = connection.run(put).tool
    if as_json:
        print_json(tool)
    else:
        note(f"The tool {tool.name} is stored, version {tool.version}.")


@app.command("list")
@online
def list_tools(
    connection: GatewayOptions, limit: LimitOption = 200, as_json: JsonOption = False
) -> None:
    """List the tools that agents can have."""

    async def read(client: GatewayClient) -> pb.ListToolsResponse:
        return await first_of(client.tools.ListTools, pb.ListToolsRequest(), "tools", limit)

    listing = connection.run(read)
    rows = [
        (
            tool.name,
            _type(tool),
            clipped(tool.description, _DESCRIPTION_CHARS),
            when(tool.update_time),
        )
        for tool in listing.tools
    ]
    columns = ["name", "type", "description", "changed"]
    print_listing(listing, columns, rows, empty="No tools.", as_json=as_json)


@app.command("show")
@online
def show(connection: GatewayOptions, name: NameArgument, as_json: JsonOption = False) -> None:
    """Show the definition of a tool, and its source."""
    tool = connection.run(lambda client: _tool(client, name))
    if as_json:
        print_json(tool)
        return
    print_fields(
        [
            ("name", tool.name),
            ("id", tool.id),
            ("type", _type(tool)),
            ("version", tool.version),
            ("tags", ", ".join(tool.tags)),
            ("effect", enum_name(tool_pb2.ToolEffect, tool.effect)),
            ("secrets", ", ".join(tool.secret_names)),
            ("packages", ", ".join(tool.pip_requirements)),
            ("hosts", ", ".join(tool.allowed_hosts)),
            ("parallel", "yes" if tool.enable_parallel_execution else ""),
            ("return limit", f"{tool.return_char_limit:,} characters"),
            ("changed", when(tool.update_time)),
            ("description", tool.description),
            ("arguments", json.dumps(json.loads(tool.parameters_json), indent=2)),
        ]
    )
    if tool.source_code:
        print_text(f"\n{tool.source_code}")


@app.command("delete")
@online
def delete(connection: GatewayOptions, name: NameArgument) -> None:
    """Delete a tool; agents can no longer use it."""

    async def remove(client: GatewayClient) -> None:
        tool = await _tool(client, name)
        await client.tools.DeleteTool(pb.DeleteToolRequest(tool_id=tool.id))

    connection.run(remove)
    note(f"The tool {name} is deleted.")


@app.command("search")
@online
def search(
    connection: GatewayOptions,
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="What the tool should do.")],
    limit: LimitOption = 5,
    as_json: JsonOption = False,
) -> None:
    """Find tools by words and by meaning."""
    request = pb.SearchToolsRequest(query=not_blank(" ".join(words)), limit=limit)

    async def find(client: GatewayClient) -> pb.SearchToolsResponse:
        return await client.tools.SearchTools(request)

    response = connection.run(find)
    rows = [
        (hit.tool.name, f"{hit.score:.2f}", clipped(hit.tool.description, _DESCRIPTION_CHARS))
        for hit in response.hits
    ]
    columns = ["name", "score", "description"]
    print_listing(response, columns, rows, empty="No such tool.", as_json=as_json)


@app.command("run")
@online
def run(
    connection: GatewayOptions,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of a tool, or a Python file to try.")
    ],
    arguments: Annotated[
        str, typer.Argument(metavar="[JSON]", help="The arguments, as with --args.")
    ] = "",
    args: Annotated[
        str, typer.Option("--args", metavar="JSON", help="The arguments, a JSON object.")
    ] = "{}",
    images: Annotated[
        Path | None,
        typer.Option("--images", metavar="FOLDER", help="Folder for images that it returns."),
    ] = None,
    agent: Annotated[
        str,
        typer.Option(
            "--agent",
            autocompletion=complete_agent,
            help="Agent whose memory a tool with agent_state reads; it is not changed.",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Run a tool once, in the sandbox or by its MCP server, without an agent.

    A file is not stored.
    """
    if arguments and args != "{}":
        raise UsageError("Give the arguments once: after the name, or with --args.")
    source = _read(Path(name)) if name.endswith(".py") else ""

    async def call(client: GatewayClient) -> pb.RunToolResponse:
        tool_id = "" if source else (await _tool(client, name)).id
        request = pb.RunToolRequest(
            tool_id=tool_id, source_code=source, arguments_json=arguments or args
        )
        if agent:
            request.agent_id = (await client.agent(agent)).id
        return await client.tools.RunTool(request)

    ran = connection.run(call)
    if as_json:
        print_json(ran)
    else:
        tool_return = returned(ran)
        print_text(
            tool_return
            if isinstance(tool_return, str)
            else json.dumps(tool_return, ensure_ascii=False)
        )
        for label, text in sorted(ran.changed_blocks.items()):
            note(f"The tool would change the memory block {safe(label)} to:")
            print_text(text)
        isolation = f", isolation: {ran.isolation}" if ran.isolation else ""
        note(f"{ran.duration_ms} ms{isolation}")
    if images is not None:
        _store_images(images, ran)
    if ran.tool_return.status != message_pb2.TOOL_STATUS_OK:
        raise typer.Exit(1)


@secret.command("set")
@online
def set_secret(connection: GatewayOptions, name: SecretArgument) -> None:
    """Store a secret, encrypted. It is typed at a prompt, or read from standard input."""
    value = _read_secret(name)
    connection.run(lambda client: _put(client, name, value))
    note(f"The secret {name} is stored.")


@secret.command("delete")
@online
def delete_secret(connection: GatewayOptions, name: SecretArgument) -> None:
    """Delete a secret."""
    connection.run(lambda client: _put(client, name, ""))
    note(f"No secret {name} is stored.")


def _store_images(folder: Path, ran: pb.RunToolResponse) -> None:
    for number, image in enumerate(ran.tool_return.images, 1):
        file = folder / f"image-{number}.{image.media_type.rpartition('/')[2]}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file.write_bytes(image.data)
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {error.strerror}.") from None
        note(f"Stored {file}")


async def _put(client: GatewayClient, name: str, value: str) -> None:
    await client.tools.PutSecret(pb.PutSecretRequest(name=name, value=value))


async def _tool(client: GatewayClient, name: str) -> pb.Tool:
    return (await client.tools.GetTool(pb.GetToolRequest(name=name))).tool


def _type(tool: pb.Tool) -> str:
    return enum_name(tool_pb2.ToolType, tool.type)


def _read(file: Path) -> str:
    try:
        # Some editors on Windows begin a file with a byte order mark, which Python skips in files.
        return file.read_text("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text.") from None


def _read_secret(name: str) -> str:
    if sys.stdin.isatty():
        with interruptible():
            value = str(typer.prompt(f"Value of {name}", hide_input=True, err=True))
    else:
        value = sys.stdin.read().removesuffix("\n")
    if not value:
        raise UsageError("There is no value on standard input.")
    return value
