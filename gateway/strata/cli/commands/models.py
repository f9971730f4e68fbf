"""``strata models``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from strata.api.agent_loop.v1 import model_service_pb2 as pb
from strata.cli.chat.prompt import interruptible
from strata.cli.client import Client
from strata.cli.failures import UsageError
from strata.cli.options import Connection, JsonOption, online
from strata.cli.output import note, print_json, print_listing, print_table

app = typer.Typer(add_completion=False)
key = typer.Typer(help="Store and delete keys of model providers.", no_args_is_help=True)
app.add_typer(key, name="key")

# Two requests to a model that may have to be loaded first.
_PROBE_S = 120.0
_MAX_FILE_CHARS = 100_000
"""What is read at most of a key that is a file; the server refuses less than that."""

ProviderArgument = Annotated[
    str, typer.Argument(metavar="PROVIDER", help="Name of the endpoint; see strata models.")
]
AgentOption = Annotated[
    str, typer.Option("--agent", help="Name or id of the agent that it is for; else for all.")
]


@app.callback(invoke_without_command=True)
@online
def list_models(connection: Connection, ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the chat models that agents can use, and keep the keys for them."""
    if ctx.invoked_subcommand is None:
        _list(connection, as_json=as_json)


@app.command("list")
@online
def list_command(connection: Connection, as_json: JsonOption = False) -> None:
    """List the chat models that agents can use; the same as strata models."""
    _list(connection, as_json=as_json)


def _list(connection: Connection, *, as_json: bool) -> None:
    async def read(client: Client) -> pb.ListModelsResponse:
        return await client.models.ListModels(pb.ListModelsRequest())

    found = connection.run(read)
    print_listing(
        found,
        ["handle", "default", "context window", "longest reply", "protocol"],
        [
            (
                model.handle,
                "yes" if model.is_default else "",
                _window(model),
                f"{model.max_output_tokens:,}" if model.max_output_tokens else "",
                model.endpoint_type,
            )
            for model in found.models
        ],
        empty="No models.",
        as_json=as_json,
    )
    if as_json:
        return
    for endpoint in found.endpoints:
        if not endpoint.reachable:
            where = f" ({endpoint.base_url})" if endpoint.base_url else ""
            note(f"{endpoint.name}{where} does not answer: {endpoint.error}")
    if any(model.context_window_source == "table" for model in found.models):
        note(f"Windows marked * are those that providers documented by {found.known_models_date}.")
    if any(not model.context_window for model in found.models):
        note(
            "A window that is unknown is taken as 32,000 tokens: ask the server with"
            " strata models probe HANDLE, or set context_window of the endpoint."
        )
    if found.notice:
        note(found.notice)


def _window(model: pb.Model) -> str:
    if not model.context_window:
        return "unknown"
    return f"{model.context_window:,}{'*' if model.context_window_source == 'table' else ''}"


@app.command("probe")
@online
def probe(
    connection: Connection,
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help='The model, "provider/model".')],
    no_requests: Annotated[
        bool,
        typer.Option("--no-requests", help="Ask the server only; the model itself costs tokens."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask a model and its server what can be known of it: window, tools, whether it answers."""
    request = pb.ProbeModelRequest(handle=handle, skip_requests=no_requests)

    async def ask(client: Client) -> pb.ProbeModelResponse:
        return await client.models.ProbeModel(request, timeout=_PROBE_S)

    found = connection.run(ask)
    if as_json:
        print_json(found)
        return
    print_table(
        ["what", "value", "says"],
        [(finding.name, finding.value, finding.source) for finding in found.findings],
        empty="Nothing is known of it.",
    )
    for problem in found.problems:
        note(problem)
    if not found.context_window:
        note(
            "Its context window is unknown and is taken as 32,000 tokens; set context_window of"
            " the agent or of the endpoint."
        )


@key.command("set")
@online
def set_key(connection: Connection, provider: ProviderArgument, agent: AgentOption = "") -> None:
    """Store a key, encrypted. It is asked for on a terminal, else read from standard input.

    A key that is a JSON file, such as that of a service account of Google, is read from it:
    strata models key set vertex < FILE
    """
    secret = _read_key(provider)
    connection.run(lambda client: _put(client, provider, secret, agent))
    note(f"The key for {provider} is stored for {agent or 'all agents'}.")


@key.command("delete")
@online
def delete_key(connection: Connection, provider: ProviderArgument, agent: AgentOption = "") -> None:
    """Delete a stored key."""
    connection.run(lambda client: _put(client, provider, "", agent))
    note(f"No key for {provider} is stored for {agent or 'all agents'}.")


async def _put(client: Client, provider: str, secret: str, agent: str) -> None:
    agent_id = await client.agent_id(agent) if agent else ""
    request = pb.PutModelKeyRequest(provider=provider, api_key=secret, agent_id=agent_id)
    await client.models.PutModelKey(request)


def _read_key(provider: str) -> str:
    """Reads a key; a person's is not shown.

    Raises:
        UsageError: It is empty.
    """
    if sys.stdin.isatty():
        with interruptible():
            secret = typer.prompt(f"Key for {provider}", hide_input=True, err=True)
    else:
        secret = sys.stdin.readline()
        if secret.lstrip().startswith("{"):
            secret += sys.stdin.read(_MAX_FILE_CHARS)
    secret = secret.strip()
    if not secret:
        raise UsageError("There is no key on standard input.")
    return str(secret)
