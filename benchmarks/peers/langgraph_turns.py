"""Turns of LangGraph with its PostgreSQL checkpointer.

`python -m benchmarks.peers.langgraph_turns`, in the environment of the peers. The graph is that of
the library's documentation: a node that calls the model, and a node that runs tools.
"""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from benchmarks.peers.program import Options, describe_calls, read_options, run, serve


class LangGraphConversations:
    """Conversations as threads of a graph."""

    def __init__(self, graph: Any, durability: str) -> None:
        self._graph = graph
        self._durability = durability

    async def send(self, conversation: str, text: str) -> str:
        """Sends a message; returns the reply."""
        return await self._run({"messages": [HumanMessage(text)]}, conversation)

    async def resume(self, conversation: str) -> str:
        """Continues from the last checkpoint; returns the reply."""
        return await self._run(None, conversation)

    async def stored(self, conversation: str) -> list[str]:
        """Describes each message of the last checkpoint, and the nodes that are to run next."""
        state = await self._graph.aget_state(_config(conversation))
        messages = [_describe(message) for message in state.values.get("messages", [])]
        return [*messages, *(f"(next: {node})" for node in state.next)]

    async def _run(self, state: dict[str, Any] | None, conversation: str) -> str:
        pieces = [
            message.content
            async for message, _ in self._graph.astream(
                state,
                _config(conversation),
                stream_mode="messages",
                durability=self._durability,
            )
            if isinstance(message, AIMessageChunk)
        ]
        return "".join(pieces)


def _config(conversation: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": conversation}}


def _describe(message: BaseMessage) -> str:
    calls = [call["name"] for call in getattr(message, "tool_calls", [])]
    return f"{message.type}{describe_calls(calls)}"


def _graph(options: Options, checkpointer: AsyncPostgresSaver) -> Any:
    tools = [tool(function) for function in options.tools()]
    model: Any = ChatOpenAI(
        model="test-model", base_url=options.model_url, api_key="benchmark", streaming=True
    )
    system = SystemMessage(options.system_prompt)
    if tools:
        model = model.bind_tools(tools)

    async def call_model(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([system, *state["messages"]])]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", call_model)
    builder.add_edge(START, "model")
    if tools:
        builder.add_node("tools", ToolNode(tools))
        builder.add_conditional_edges("model", tools_condition)
        builder.add_edge("tools", "model")
    return builder.compile(checkpointer=checkpointer)


async def _main(options: Options) -> None:
    async with AsyncPostgresSaver.from_conn_string(options.database_url) as checkpointer:
        await checkpointer.setup()
        graph = _graph(options, checkpointer)
        await serve(LangGraphConversations(graph, options.durability))


if __name__ == "__main__":
    run(_main(read_options()))
