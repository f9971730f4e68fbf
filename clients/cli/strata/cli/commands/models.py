"""``strata models``: lists and probes chat models, and stores keys of their providers."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from strata.api.agent_loop.v1 import model_service_pb2 as pb
from strata.cli.agent_names import complete_agent
from strata.cli.chat.prompt import interruptible
from strata.cli.client import GatewayClient
from strata.cli.failures import UsageError
from strata.cli.options import GatewayOptions, JsonOption, online
from strata.cli.output import note, print_json, print_listing, print_table

app = typer.Typer(add_completion=False)
key = typer.Typer(help="Store and delete keys of model providers.", no_args_is_help=True)
app.add_typer(key, name="key")

# Two requests to a model that may have to be loaded first.
_PROBE_S = 120.0
_MAX_FILE_CHARS = 100_000
"""Maximum number of characters of a key file to read; the server's own limit is lower."""

ProviderArgument = Annotated[
    str, typer.Argument(metavar="PROVIDER", help="Name of the endpoint; see strata models.")
]
AgentOption = Annotated[
    str,
    typer.Option(
        "--agent",
        autocompletion=complete_agent,
        help="Name or id of the only agent that uses it. Default: all agents.",
    ),
]


@app.callback(invoke_without_command=True)
@online
def list_models(
    connection: GatewayOptions, ctx: typer.Context, as_json: JsonOption = False
) -> None:
    """List the chat models that agents can use, and manage the keys of their providers."""
    if ctx.invoked_subcommand is None:
        _print_models(connection, as_json=as_json)


@app.command("list")
@online
def list_command(connection: GatewayOptions, as_json: JsonOption = False) -> None:
    """List the chat models that agents can use; the same as strata models."""
    _print_models(connection, as_json=as_json)


def _print_models(connection: GatewayOptions, *, as_json: bool) -> None:
    async def read(client: GatewayClient) -> pb.ListModelsResponse:
        return await client.models.ListModels(pb.ListModelsRequest())

    listing = connection.run(read)
    print_listing(
        listing,
        ["handle", "default", "context window", "longest reply", "protocol"],
        [
            (
                model.handle,
                "yes" if model.is_default else "",
                _window(model),
                f"{model.max_output_tokens:,}" if model.max_output_tokens else "",
                model.endpoint_type,
            )
            for model in listing.models
        ],
        empty="No models.",
        as_json=as_json,
    )
    if as_json:
        return
    for endpoint in listing.endpoints:
        if not endpoint.reachable:
            url = f" ({endpoint.base_url})" if endpoint.base_url else ""
            note(f"{endpoint.name}{url} does not answer: {endpoint.error}")
    if any(model.context_window_source == "table" for model in listing.models):
        note(f"Windows marked * are from the providers' documents of {listing.known_models_date}.")
    if any(not model.context_window for model in listing.models):
        note(
            "An unknown window counts as 32,000 tokens: ask the server with"
            " strata models probe HANDLE, or set context_window of the endpoint."
        )
    if listing.notice:
        note(listing.notice)


def _window(model: pb.Model) -> str:
    if not model.context_window:
        return "unknown"
    return f"{model.context_window:,}{'*' if model.context_window_source == 'table' else ''}"


@app.command("probe")
@online
def probe(
    connection: GatewayOptions,
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help='The model, "provider/model".')],
    no_requests: Annotated[
        bool,
        typer.Option(
            "--no-requests", help="Query only the server. Requests to the model cost tokens."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Probe a model and its server: window, support of tools, whether it answers."""
    request = pb.ProbeModelRequest(handle=handle, skip_requests=no_requests)

    async def send_probe(client: GatewayClient) -> pb.ProbeModelResponse:
        return await client.models.ProbeModel(request, timeout=_PROBE_S)

    response = connection.run(send_probe)
    if as_json:
        print_json(response)
        return
    print_table(
        ["what", "value", "source"],
        [(finding.name, finding.value, finding.source) for finding in response.findings],
        empty="No findings.",
    )
    for problem in response.problems:
        note(problem)
    if not response.context_window:
        note(
            "Its context window is unknown and is taken as 32,000 tokens; set context_window of"
            " the agent or of the endpoint."
        )


@key.command("set")
@online
def set_key(
    connection: GatewayOptions, provider: ProviderArgument, agent: AgentOption = ""
) -> None:
    """Store a key, encrypted. It is typed at a prompt, or read from standard input.

    A key in a JSON file, such as a Google service account's, comes from standard input:
    strata models key set vertex < FILE
    """
    secret = _read_key(provider)
    connection.run(lambda client: _put(client, provider, secret, agent))
    note(f"The key for {provider} is stored for {agent or 'all agents'}.")


@key.command("delete")
@online
def delete_key(
    connection: GatewayOptions, provider: ProviderArgument, agent: AgentOption = ""
) -> None:
    """Delete a stored key."""
    connection.run(lambda client: _put(client, provider, "", agent))
    note(f"No key for {provider} is stored for {agent or 'all agents'}.")


async def _put(client: GatewayClient, provider: str, secret: str, agent: str) -> None:
    agent_id = await client.agent_id(agent) if agent else ""
    request = pb.PutModelKeyRequest(provider=provider, api_key=secret, agent_id=agent_id)
    await client.models.PutModelKey(request)


def _read_key(provider: str) -> str:
    """Reads a key; typed characters are not shown.

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
