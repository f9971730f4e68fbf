"""``strata agents conversations`` and ``strata agents fork``: conversations of an agent."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.failures import UsageError
from strata.cli.options import (
    AgentArgument,
    ConversationOption,
    GatewayOptions,
    JsonOption,
    LimitOption,
    online,
)
from strata.cli.output import print_fields, print_json, print_listing, when


@online
def list_conversations(
    connection: GatewayOptions,
    agent: AgentArgument,
    limit: LimitOption = 50,
    external_id: Annotated[
        str,
        typer.Option("--external-id", help="Only the conversation with this identifier of yours."),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List the conversations of an agent, oldest first."""

    async def read(client: GatewayClient) -> pb.ListConversationsResponse:
        agent_id = await client.agent_id(agent)
        if external_id:
            wanted = pb.GetConversationRequest(agent_id=agent_id, external_id=external_id)
            response = await client.agents.GetConversation(wanted)
            return pb.ListConversationsResponse(conversations=[response.conversation])
        request = pb.ListConversationsRequest(agent_id=agent_id)
        return await first_of(client.agents.ListConversations, request, "conversations", limit)

    listing = connection.run(read)
    with_external_ids = any(conversation.external_id for conversation in listing.conversations)
    print_listing(
        listing,
        ["id", "title", "forked from", "created", *(["external id"] * with_external_ids)],
        [
            (
                conversation.id,
                conversation.title,
                conversation.forked_from_id,
                when(conversation.create_time),
                *([conversation.external_id] * with_external_ids),
            )
            for conversation in listing.conversations
        ],
        empty="No conversations.",
        as_json=as_json,
    )


@online
def fork_conversation(
    connection: GatewayOptions,
    agent: AgentArgument,
    message: Annotated[
        str,
        typer.Option("--at", metavar="MESSAGE", help="Its last message; the newest if not given."),
    ] = "",
    conversation: ConversationOption = "",
    title: Annotated[str, typer.Option("--title", help="Title of the new conversation.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Start a new conversation from a message of another one; both continue independently."""

    async def work(client: GatewayClient) -> pb.Conversation:
        owner = await client.agent(agent)
        return await fork(client, owner, message, conversation, title)

    made = connection.run(work)
    if as_json:
        print_json(made)
        return
    print_fields(
        [
            ("conversation", made.id),
            ("title", made.title),
            ("forked from", made.forked_from_id),
            ("created", when(made.create_time)),
        ]
    )


async def fork(
    client: GatewayClient,
    agent: pb.Agent,
    message_id: str,
    conversation_id: str = "",
    title: str = "",
) -> pb.Conversation:
    """Forks a conversation of an agent.

    Args:
        client: The gateway.
        agent: The agent of the conversation.
        message_id: Its last message; empty for the newest.
        conversation_id: The conversation; empty for the conversation of the message, or the
            agent's default one.
        title: Title of the new one.

    Raises:
        UsageError: The message is another agent's.
    """
    if message_id and not conversation_id:
        request = message_pb.GetMessageRequest(message_id=message_id)
        message = (await client.messages.GetMessage(request)).message
        if message.agent_id != agent.id:
            raise UsageError(f"{message_id} is a message of another agent.")
        conversation_id = message.conversation_id
    response = await client.agents.ForkConversation(
        pb.ForkConversationRequest(
            request_id=new_request_id(),
            conversation_id=conversation_id or agent.default_conversation_id,
            until_message_id=message_id,
            title=title,
        )
    )
    return response.conversation
