"""Turns of the OpenAI Agents SDK with a database session.

`python -m benchmarks.peers.agents_sdk_turns`, in the environment of the peers.
"""

from __future__ import annotations

from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from agents.extensions.memory import SQLAlchemySession
from openai import AsyncOpenAI
from sqlalchemy.ext.asyncio import (  # noqa: TID251 - a program without Strata
    AsyncEngine,
    create_async_engine,
)

from benchmarks.peers.program import (
    NoRunStateError,
    Options,
    describe_calls,
    read_options,
    run,
    serve,
)


class AgentsSdkConversations:
    """Conversations as sessions of one agent."""

    def __init__(self, agent: Any, engine: AsyncEngine) -> None:
        self._agent = agent
        self._engine = engine
        self._sessions: dict[str, Any] = {}

    async def send(self, conversation: str, text: str) -> str:
        """Sends a message; returns the reply."""
        result = Runner.run_streamed(self._agent, text, session=self._session(conversation))
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    async def resume(self, conversation: str) -> str:
        """Raises `NoRunStateError`: a session holds messages, and not the state of a run."""
        raise NoRunStateError(f"session {conversation} holds messages only")

    async def stored(self, conversation: str) -> list[str]:
        """Describes each item of the session."""
        return [_describe(item) for item in await self._session(conversation).get_items()]

    def _session(self, conversation: str) -> Any:
        if conversation not in self._sessions:
            self._sessions[conversation] = SQLAlchemySession(
                conversation, engine=self._engine, create_tables=True
            )
        return self._sessions[conversation]


def _describe(item: dict[str, Any]) -> str:
    kind = item.get("role") or item["type"]
    return f"{kind}{describe_calls([item['name']] if 'name' in item else [])}"


def _agent(options: Options) -> Any:
    client = AsyncOpenAI(base_url=options.model_url, api_key="benchmark")
    return Agent(
        name="benchmark",
        instructions=options.system_prompt,
        model=OpenAIChatCompletionsModel("test-model", client),
        tools=[function_tool(function) for function in options.tools()],
    )


async def _main(options: Options) -> None:
    # Traces would be sent to a service of OpenAI.
    set_tracing_disabled(True)
    url = options.database_url.replace("postgresql://", "postgresql+asyncpg://", 1)
    engine = create_async_engine(url)
    await serve(AgentsSdkConversations(_agent(options), engine))
    await engine.dispose()


if __name__ == "__main__":
    run(_main(read_options()))
