"""AgentService: converts requests, calls the lifecycle, converts the results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from strata.agent_loop.agents.lifecycle import AgentLifecycle
from strata.agent_loop.agents.next_requests import NextRequests
from strata.agent_loop.compaction.manual_compaction import ManualCompaction, plan_on_request
from strata.agent_loop.compaction.preview import preview_of
from strata.agent_loop.convert import checks
from strata.agent_loop.convert.agent_options import compaction_of, is_of_next_turn
from strata.agent_loop.convert.agents import (
    agent_to_proto,
    check_conversation_name,
    conversation_from_proto,
    conversation_to_proto,
    create_from_proto,
    filter_from_proto,
    fork_from_proto,
    listed_agent_to_proto,
    update_from_proto,
)
from strata.agent_loop.convert.context_windows import (
    compaction_result_to_proto,
    preview_to_proto,
    window_to_proto,
)
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.agent.store import AgentStore
from strata.agent_loop.models.tokens import TokenEstimator
from strata.agent_loop.prompts.library import PromptLibrary
from strata.agent_loop.servicers.call_usage import reported_usage
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as pb_grpc
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.shared.db import Page, decode_page_token, page_limit
from strata.shared.ids import check_id, default_conversation_id

Context = Any
MAX_PAGE_SIZE = 500


class AgentServicer(pb_grpc.AgentServiceServicer):
    """Agents and their conversations. Export and import are not built yet."""

    def __init__(
        self,
        lifecycle: AgentLifecycle,
        next_requests: NextRequests,
        store: AgentStore,
        tokens: TokenEstimator,
        compaction: ManualCompaction,
        prompts: PromptLibrary,
    ) -> None:
        self._lifecycle = lifecycle
        self._next_requests = next_requests
        self._compaction = compaction
        self._prompts = prompts
        self._store = store
        self._tokens = tokens

    async def CreateAgent(
        self, request: pb.CreateAgentRequest, context: Context
    ) -> pb.CreateAgentResponse:
        """Creates an agent with its blocks, tools and default conversation.

        Its type decides the default tools (decision 0099).
        """
        prompt = None
        if request.system_prompt_key and not request.HasField("system"):
            prompt = await asyncio.to_thread(
                self._prompts.get, request.system_prompt_key, field="system_prompt_key"
            )
        command = create_from_proto(request, None if prompt is None else prompt.text)
        agent, blocks = await self._lifecycle.create(command)
        return pb.CreateAgentResponse(agent=agent_to_proto(agent), blocks=blocks)

    async def GetAgent(self, request: pb.GetAgentRequest, context: Context) -> pb.GetAgentResponse:
        """Returns an agent by id or by name."""
        if bool(request.agent_id) == bool(request.name):
            raise InvalidArgumentError(
                "Give either agent_id or name.",
                violations=[FieldViolation("agent_id", "either this or name must be given")],
            )
        if request.name:
            agent = await self._lifecycle.get_by_name(request.name)
        else:
            check_id(request.agent_id, "agent", field="agent_id")
            agent = await self._lifecycle.get(request.agent_id)
        return pb.GetAgentResponse(agent=agent_to_proto(agent))

    async def ListAgents(
        self, request: pb.ListAgentsRequest, context: Context
    ) -> pb.ListAgentsResponse:
        """Lists agents by id."""
        limit = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        agent_filter = filter_from_proto(request)
        tags, agent_ids = sorted(agent_filter.tags), sorted(agent_filter.agent_ids)
        scope = f"ListAgents {tags} {agent_filter.name_contains} {agent_ids}"
        key = decode_page_token(scope, request.page_token, (str,))
        after = str(key[0]) if key else ""
        if request.names_only:
            names = await self._store.names(agent_filter, limit + 1, after)
            page = Page.cut(names, limit, scope, lambda agent: (agent.id,))
            return pb.ListAgentsResponse(
                agents=map(listed_agent_to_proto, page.rows), next_page_token=page.next_page_token
            )
        agents = await self._store.page(agent_filter, limit + 1, after)
        # In a thread: the largest page takes more than 20 ms.
        return await asyncio.to_thread(_listed, agents, limit, scope)

    async def UpdateAgent(
        self, request: pb.UpdateAgentRequest, context: Context
    ) -> pb.UpdateAgentResponse:
        """Changes the given fields."""
        agent = await self._lifecycle.update(update_from_proto(request))
        return pb.UpdateAgentResponse(agent=agent_to_proto(agent))

    async def DeleteAgent(
        self, request: pb.DeleteAgentRequest, context: Context
    ) -> pb.DeleteAgentResponse:
        """Deletes an agent from all services."""
        check_id(request.agent_id, "agent", field="agent_id")
        await self._lifecycle.delete(request.agent_id)
        return pb.DeleteAgentResponse()

    async def CreateConversation(
        self, request: pb.CreateConversationRequest, context: Context
    ) -> pb.CreateConversationResponse:
        """Starts another conversation."""
        conversation = await self._lifecycle.start_conversation(conversation_from_proto(request))
        return pb.CreateConversationResponse(conversation=conversation_to_proto(conversation))

    async def GetConversation(
        self, request: pb.GetConversationRequest, context: Context
    ) -> pb.GetConversationResponse:
        """Returns a conversation."""
        check_conversation_name(request)
        if request.conversation_id:
            row = await self._store.conversation(request.conversation_id)
        else:
            row = await self._store.external_conversation(request.agent_id, request.external_id)
        return pb.GetConversationResponse(conversation=conversation_to_proto(row))

    async def ListConversations(
        self, request: pb.ListConversationsRequest, context: Context
    ) -> pb.ListConversationsResponse:
        """Lists conversations of an agent, oldest first."""
        check_id(request.agent_id, "agent", field="agent_id")
        limit = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        checks.refuse(checks.name_violations("title", request.title))
        scope = f"ListConversations {request.agent_id} {request.title}"
        key = decode_page_token(scope, request.page_token, (str,))
        rows = await self._store.conversations(
            request.agent_id, limit + 1, str(key[0]) if key else "", request.title
        )
        page = Page.cut(rows, limit, scope, lambda conversation: (conversation.id,))
        return pb.ListConversationsResponse(
            conversations=[conversation_to_proto(row) for row in page.rows],
            next_page_token=page.next_page_token,
        )

    async def ForkConversation(
        self, request: pb.ForkConversationRequest, context: Context
    ) -> pb.ForkConversationResponse:
        """Starts a conversation with a copy of another one up to a message."""
        conversation = await self._lifecycle.fork_conversation(fork_from_proto(request))
        return pb.ForkConversationResponse(conversation=conversation_to_proto(conversation))

    async def GetContextWindow(
        self, request: pb.GetContextWindowRequest, context: Context
    ) -> pb.GetContextWindowResponse:
        """Returns the parts of the context window and their sizes."""
        conversation_id = _conversation_of(request)
        next_request = await self._next_requests.inspect(request.agent_id, conversation_id)
        token_budget = next_request.token_budget(self._tokens)
        steps = await self._next_requests.next_steps(next_request, token_budget)
        return window_to_proto(next_request, token_budget, steps)

    async def PreviewCompaction(
        self, request: pb.PreviewCompactionRequest, context: Context
    ) -> pb.PreviewCompactionResponse:
        """Returns what a compaction would do with each message of a window."""
        conversation_id = _conversation_of(request)
        in_next_turn = is_of_next_turn(request)
        settings = self._lifecycle.check_compaction(compaction_of(request))
        inspected = await self._next_requests.inspect(request.agent_id, conversation_id)
        next_request = inspected.with_compaction(settings)
        token_budget = next_request.token_budget(self._tokens)
        if in_next_turn:
            planned = (await self._next_requests.next_steps(next_request, token_budget)).compaction
        else:
            planned = plan_on_request(next_request, token_budget)
        preview = preview_of(next_request, token_budget, planned)
        return preview_to_proto(preview, next_request.agent.compaction.evicts)

    async def CompactConversation(
        self, request: pb.CompactConversationRequest, context: Context
    ) -> pb.CompactConversationResponse:
        """Compacts the window of a conversation now."""
        conversation_id = _conversation_of(request)
        settings = self._lifecycle.check_compaction(compaction_of(request))
        async with reported_usage(context) as count:
            freed = await self._compaction.compact(
                request.agent_id, conversation_id, settings, count
            )
        return compaction_result_to_proto(freed)


def _conversation_of(
    request: pb.GetContextWindowRequest
    | pb.PreviewCompactionRequest
    | pb.CompactConversationRequest,
) -> str:
    """Returns the conversation that a request names, by default the agent's default one.

    Raises:
        InvalidArgumentError: A malformed id.
    """
    check_id(request.agent_id, "agent", field="agent_id")
    conversation_id = request.conversation_id or default_conversation_id(request.agent_id)
    return check_id(conversation_id, "conversation", field="conversation_id")


def _listed(agents: Sequence[Agent], limit: int, scope: str) -> pb.ListAgentsResponse:
    page = Page.cut(agents, limit, scope, lambda agent: (agent.id,))
    return pb.ListAgentsResponse(
        agents=map(agent_to_proto, page.rows), next_page_token=page.next_page_token
    )
