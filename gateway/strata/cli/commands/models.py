"""``strata models``."""

from __future__ import annotations

import typer

from strata.api.agent_loop.v1 import model_service_pb2 as pb
from strata.cli.client import Client
from strata.cli.options import Connection, JsonOption, online
from strata.cli.output import note, print_listing

app = typer.Typer(add_completion=False)


@app.command("models")
@online
def list_models(connection: Connection, as_json: JsonOption = False) -> None:
    """List the chat models that agents can use."""

    async def read(client: Client) -> pb.ListModelsResponse:
        return await client.models.ListModels(pb.ListModelsRequest())

    found = connection.run(read)
    print_listing(
        found,
        ["handle", "default", "context window", "protocol"],
        [
            (
                model.handle,
                "yes" if model.is_default else "",
                f"{model.context_window:,}" if model.context_window else "",
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
    if found.notice:
        note(found.notice)
