import asyncio

import strata.client
from strata.client import Client, NotFoundError, text_of


async def main() -> None:
    async with strata.client.connect() as client:
        agent_id = await create_agent(client)
        print("reply:", await client.ask(agent_id, "Where do I live?"))
        await stream(client, agent_id)
        await run_client_tool(client)
        await resume(client, agent_id)
        try:
            await client.agents.get("nobody")
        except NotFoundError as error:
            print("refused:", error.reason, error.message)


async def create_agent(client: Client) -> str:
    blocks = {
        "human": "Her name is Ann. She lives in Lisbon.",
        "persona": "A travel agent who answers in one sentence.",
    }
    return (await client.agents.create(blocks=blocks)).id


async def stream(client: Client, agent_id: str) -> None:
    async for event in client.send(agent_id, "What did I say about trains?"):
        if event.HasField("tool_started"):
            print("call:", event.tool_started.name, event.tool_started.arguments)
        if event.HasField("text_delta"):
            print(event.text_delta.text, end="")
    print()


def read_clipboard(format: str = "text") -> dict[str, str]:
    """Reads the clipboard of the user."""
    return {format: "Lisbon to Porto, 9:30"}


async def run_client_tool(client: Client) -> None:
    await client.upsert_tool(read_clipboard, by_client=True)
    helper = await client.agents.create(tools=["read_clipboard"])
    answer = await client.ask(helper, "What have I copied?", tools=[read_clipboard])
    print("answer:", answer)


async def resume(client: Client, agent_id: str) -> None:
    run_id, sequence = "", 0
    async for event in client.send(agent_id, "Plan a week in Porto."):
        run_id, sequence = event.run_id, max(sequence, event.sequence)
        if event.HasField("text_delta"):
            break  # The run continues.
    print("left", flush=True)
    async for event in client.resume(run_id, after_sequence=sequence):
        if event.HasField("message_stored"):
            print("plan:", text_of(event.message_stored.message))


asyncio.run(main())
