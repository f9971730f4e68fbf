"""Prompts: pieces of an agent's memory that a person puts into a conversation of the client."""

from __future__ import annotations

from collections.abc import Mapping

import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError

from strata.protocol.errors import StrataError
from strata.shared.agent_mcp.memory import ConnectedAgent, MemoryServices
from strata.shared.agent_mcp.results import protocol_error
from strata.shared.agent_mcp.search_tools import search_conversations, search_passages
from strata.shared.agent_mcp.tools import rendered
from strata.shared.json_text import encodable_text, indented_json
from strata.shared.one_line import clipped, one_line

_MAX_ARGUMENT_CHARS = 4_000
_NAME_CHARS = 100
_MATCHES = 10

_READING = (
    types.Prompt(
        name="memory",
        title="What the agent knows",
        description="The memory that the agent always sees: its blocks and open files.",
    ),
    types.Prompt(
        name="recall",
        title="What the agent remembers about something",
        description="What was said about a topic, and what archival memory holds about it.",
        arguments=[
            types.PromptArgument(name="topic", description="What to look for.", required=True)
        ],
    ),
)
_CHANGING = (
    types.Prompt(
        name="remember",
        title="Remember something",
        description="Asks the model to store a fact in the agent's memory.",
        arguments=[
            types.PromptArgument(name="fact", description="What to remember.", required=True)
        ],
    ),
)


class Prompts:
    """The prompts of one agent's memory.

    Args:
        memory: The agent.
        read_only: Leave out those that change the memory.
    """

    def __init__(self, memory: ConnectedAgent, *, read_only: bool) -> None:
        self._memory = memory
        self._offered = {
            prompt.name: prompt for prompt in (_READING if read_only else _READING + _CHANGING)
        }

    async def list_prompts(
        self, _: ServerRequestContext, __: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        """Lists the prompts."""
        return types.ListPromptsResult(prompts=[*self._offered.values()])

    async def get_prompt(
        self, _: ServerRequestContext, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        """Returns the messages of a prompt.

        Raises:
            MCPError: There is no such prompt, an argument is missing, or Strata refuses.
        """
        prompt = self._offered.get(params.name)
        if prompt is None:
            raise MCPError(
                types.INVALID_PARAMS,
                f"There is no prompt {clipped(params.name, _NAME_CHARS)!r}, but"
                f" {', '.join(self._offered)}.",
            )
        arguments = _checked(prompt, params.arguments or {})
        try:
            async with self._memory.connected() as client:
                text = await self._text(client, prompt.name, arguments)
        except StrataError as error:
            raise protocol_error(self._memory, error) from error
        content = types.TextContent(text=encodable_text(text))
        return types.GetPromptResult(
            description=prompt.description,
            messages=[types.PromptMessage(role="user", content=content)],
        )

    async def _text(self, client: MemoryServices, name: str, arguments: Mapping[str, str]) -> str:
        memory = self._memory
        agent = clipped(one_line(memory.agent_name), _NAME_CHARS)
        match name:
            case "memory":
                text = await rendered(client, memory.agent_id)
                return f"This is the memory of {agent}. Take it as information.\n\n{text}"
            case "recall":
                search = {"query": arguments["topic"]}
                messages = await search_conversations(client, memory, {**search, "limit": _MATCHES})
                passages = await search_passages(client, memory, {**search, "top_k": _MATCHES})
                matches = {
                    "conversations": [_match(match) for match in messages["results"]],
                    "archival_memory": [_match(match) for match in passages["results"]],
                }
                text = indented_json(matches)
                return (
                    f"This is what {agent} remembers about: {arguments['topic']}\n"
                    f"Take it as information, best matches first.\n\n{text}"
                )
            case _:
                return (
                    f"Store this in the memory of {agent}: a fact that it must always see in the"
                    " memory block that it belongs to (read the block first), anything else in"
                    f" archival memory.\n\n{arguments['fact']}"
                )


def _checked(prompt: types.Prompt, arguments: Mapping[str, str]) -> Mapping[str, str]:
    """Checks the arguments of a prompt.

    Raises:
        MCPError: One is missing, empty or too long.
    """
    for argument in prompt.arguments or ():
        text = arguments.get(argument.name, "").strip()
        if not 0 < len(text) <= _MAX_ARGUMENT_CHARS:
            raise MCPError(
                types.INVALID_PARAMS,
                f"The prompt {prompt.name} needs the argument {argument.name!r}, of at most"
                f" {_MAX_ARGUMENT_CHARS} characters.",
            )
    return arguments


def _match(match: Mapping[str, object]) -> Mapping[str, object]:
    return {name: match[name] for name in ("timestamp", "role", "content") if name in match}
