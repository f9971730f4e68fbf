"""``strata agents context`` and ``compact``: what fills a window, and compaction by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.cli.client import GatewayClient
from strata.cli.compaction_options import (
    CharsOption,
    CompactionChoice,
    ModelOption,
    ModeOption,
    PromptFileOption,
    PromptOption,
    ShareOption,
)
from strata.cli.compaction_preview import print_preview
from strata.cli.context_picture import picture
from strata.cli.options import AgentArgument, ConversationOption, GatewayOptions, JsonOption, online
from strata.cli.output import console, note, print_json, print_table, print_text

# Longer than the server's own limit of four minutes for a summary.
_COMPACTION_S = 300.0


@online
def show_context(
    connection: GatewayOptions,
    agent: AgentArgument,
    conversation: ConversationOption = "",
    prompt: Annotated[
        bool, typer.Option("--prompt", help="Print the whole system message instead.")
    ] = False,
    compaction: Annotated[
        bool,
        typer.Option(
            "--compaction",
            help="List the messages instead, with what the next compaction would do with each.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what fills the context window of an agent."""

    async def read(client: GatewayClient) -> pb.GetContextWindowResponse:
        request = pb.GetContextWindowRequest(
            agent_id=await client.agent_id(agent), conversation_id=conversation
        )
        return await client.agents.GetContextWindow(request)

    async def read_preview(client: GatewayClient) -> pb.PreviewCompactionResponse:
        window = await read(client)
        return await client.agents.PreviewCompaction(
            pb.PreviewCompactionRequest(
                agent_id=await client.agent_id(agent),
                conversation_id=conversation,
                trigger=(
                    pb.COMPACTION_TRIGGER_NEXT_TURN
                    if window.compaction_due
                    else pb.COMPACTION_TRIGGER_REQUEST
                ),
            )
        )

    if compaction:
        print_preview(connection.run(read_preview), as_json=as_json)
        return
    window = connection.run(read)
    if as_json:
        print_json(window)
        return
    if prompt:
        print_text(window.system_message)
        return
    screen = console()
    if screen.is_terminal:
        for line in picture(window, screen.width):
            screen.print(line, soft_wrap=True)
        return
    print_table(
        ["part", "tokens", "characters", "items"],
        [
            (part.name, f"{part.tokens:,}", f"{part.characters:,}", str(part.count or ""))
            for part in window.parts
        ],
        empty="The window is empty.",
    )
    share = window.used_tokens / window.context_window if window.context_window else 0
    about = "about " if window.estimated else ""
    note(f"{about}{window.used_tokens:,} of {window.context_window:,} tokens ({share:.0%})")


@online
def compact_conversation(
    connection: GatewayOptions,
    agent: AgentArgument,
    conversation: ConversationOption = "",
    mode: ModeOption = None,
    share: ShareOption = None,
    model: ModelOption = None,
    prompt: PromptOption = None,
    prompt_file: PromptFileOption = None,
    chars: CharsOption = None,
    preview: Annotated[
        bool,
        typer.Option(
            "--preview", help="List what would be removed, with the same options; change nothing."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Replace older messages with a summary now; the messages stay in recall memory.

    Options override the agent's settings for this compaction.
    """
    choice = CompactionChoice(mode, share, model, prompt, prompt_file, chars)
    settings = choice.over() if choice else None

    async def read_preview(client: GatewayClient) -> pb.PreviewCompactionResponse:
        request = pb.PreviewCompactionRequest(
            agent_id=await client.agent_id(agent),
            conversation_id=conversation,
            compaction=settings,
        )
        return await client.agents.PreviewCompaction(request)

    async def compact(client: GatewayClient) -> pb.CompactConversationResponse:
        request = pb.CompactConversationRequest(
            agent_id=await client.agent_id(agent),
            conversation_id=conversation,
            compaction=settings,
        )
        return await client.agents.CompactConversation(request, timeout=_COMPACTION_S)

    if preview:
        print_preview(connection.run(read_preview), as_json=as_json)
        return
    response = connection.run(compact)
    if as_json:
        print_json(response)
        return
    if not response.HasField("summary"):
        note("No message can be removed from the window.")
        return
    print_text("".join(part.summary.text for part in response.summary.parts))
    note(f"{response.tokens_before:,} → {response.tokens_after:,} tokens.")
