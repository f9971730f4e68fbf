"""``strata prompts``: the library of system prompts."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.agent_loop.v1 import prompt_service_pb2 as pb
from strata.cli.client import GatewayClient
from strata.cli.options import GatewayOptions, JsonOption, online
from strata.cli.output import note, print_json, print_listing, print_text

app = typer.Typer(
    help="List and show the system prompts that agents can be created with.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command("list")
@online
def list_prompts(connection: GatewayOptions, as_json: JsonOption = False) -> None:
    """List the prompts of Strata and those in the server's folder of prompts."""

    async def read(client: GatewayClient) -> pb.ListPromptsResponse:
        return await client.prompts.ListPrompts(pb.ListPromptsRequest())

    listing = connection.run(read)
    print_listing(
        listing,
        ["key", "source", "characters", "description"],
        [
            (
                prompt.key,
                "Strata" if prompt.builtin else "file",
                f"{prompt.characters:,}" if prompt.characters else "",
                f"not used: {prompt.problem}" if prompt.problem else prompt.description,
            )
            for prompt in listing.prompts
        ],
        empty="No prompts.",
        as_json=as_json,
    )
    if listing.more and not as_json:
        note(f"The folder has {listing.more} more files.")


@app.command("show")
@online
def show_prompt(
    connection: GatewayOptions,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its key; see strata prompts list.")],
    as_json: JsonOption = False,
) -> None:
    """Print the text of a prompt."""

    async def read(client: GatewayClient) -> pb.Prompt:
        return (await client.prompts.GetPrompt(pb.GetPromptRequest(key=key))).prompt

    prompt = connection.run(read)
    if as_json:
        print_json(prompt)
    else:
        print_text(prompt.text)
