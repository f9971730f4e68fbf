"""The real model in its real process: run by `make test-local-model`, since it takes 1.1 GB.

`STRATA_LOCAL_DEMO_CACHE` names a cache folder to use; missing files are downloaded and built.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import psutil
import pytest

from strata.standalone.chat_model.local_model import LocalChatModel
from strata.standalone.chat_model.settings import LocalDemoSettings

pytestmark = [pytest.mark.local_model, pytest.mark.timeout(1800)]

SYSTEM = (
    "You keep memory about the user. Reply with ONE JSON object: the tool to call and its "
    "arguments.\n"
    "Tools:\n- core_memory_append(label, content): store a new fact that the user tells about "
    'themselves; label is "human"\n- send_message(message): answer the user\n'
    'Example: user says "I am Bob and I like tea" -> {"tool": "core_memory_append", "arguments": '
    '{"label": "human", "content": "Name: Bob. Likes tea."}}\n'
    'Example: user says "hello" -> {"tool": "send_message", "arguments": {"message": "Hi!"}}'
)


def action(name: str, **properties: Any) -> dict[str, Any]:
    arguments = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "object",
        "properties": {
            "tool": {"const": name},
            "arguments": {**arguments, "additionalProperties": False},
        },
        "required": ["tool", "arguments"],
        "additionalProperties": False,
    }


TOOL_CALL: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "action",
        "schema": {
            "anyOf": [
                action("send_message", message={"type": "string"}),
                action(
                    "core_memory_append",
                    label={"enum": ["human", "persona"]},
                    content={"type": "string"},
                ),
            ]
        },
    },
}


@pytest.fixture
async def model() -> AsyncIterator[LocalChatModel]:
    settings = LocalDemoSettings()
    running = LocalChatModel(settings.local_demo_cache, model_url=settings.local_demo_url)
    await running.ensure()
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def client(model: LocalChatModel) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=model.base_url, api_key=model.api_key, max_retries=0, timeout=300
    ) as connected:
        yield connected


def messages(*turns: str) -> Any:
    roles = ["system", *(["user", "assistant"] * len(turns))]
    return [
        {"role": role, "content": text} for role, text in zip(roles, [SYSTEM, *turns], strict=False)
    ]


async def test_a_tool_call_follows_its_schema_and_the_prompt_is_reused(
    client: openai.AsyncOpenAI,
) -> None:
    message = "Hi, I am Ana and I am allergic to peanuts."
    first = await client.chat.completions.create(
        model="local-demo", messages=messages(message), response_format=TOOL_CALL, temperature=0
    )
    reply = first.choices[0].message.content
    assert reply is not None
    call = json.loads(reply)
    assert call["tool"] == "core_memory_append"
    assert "peanut" in call["arguments"]["content"]
    second = await client.chat.completions.create(
        model="local-demo",
        messages=messages(message, reply, "Tool result: ok. Now greet me."),
        response_format=TOOL_CALL,
        temperature=0,
    )
    assert json.loads(second.choices[0].message.content or "")["tool"]
    usage = second.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens is not None
    assert usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens  # type: ignore[union-attr]


async def test_text_is_streamed_and_the_same_seed_generates_the_same_text(
    client: openai.AsyncOpenAI,
) -> None:
    texts = []
    for _ in range(2):
        stream = await client.chat.completions.create(
            model="local-demo",
            messages=[{"role": "user", "content": "Name three colours, in a list."}],
            seed=11,
            temperature=0.8,
            max_tokens=60,
            stream=True,
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert len([piece for piece in pieces if piece]) > 3
        texts.append("".join(pieces))
    assert texts[0] == texts[1]
    assert "<|im_end|>" not in texts[0]


async def test_a_schema_that_cannot_be_a_grammar_is_refused(client: openai.AsyncOpenAI) -> None:
    schemas: Any = ({"type": "wat"}, {"anyOf": []}, {"$ref": "#/nowhere"})
    for schema in schemas:
        with pytest.raises(openai.BadRequestError, match="schema cannot be used"):
            await client.chat.completions.create(
                model="local-demo",
                messages=[{"role": "user", "content": "hi"}],
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": schema},
                },
            )


async def test_a_client_that_disconnects_frees_the_model(client: openai.AsyncOpenAI) -> None:
    long: Any = [{"role": "user", "content": "Count from 1 to 1000, all numbers, one a line."}]
    stream = await client.chat.completions.create(
        model="local-demo", messages=long, stream=True, max_tokens=4000
    )
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    # 4,000 tokens would take minutes: an answer now means that generation was stopped.
    async with asyncio.timeout(60):
        await client.chat.completions.create(
            model="local-demo", messages=[{"role": "user", "content": "hi"}], max_tokens=3
        )


async def test_a_killed_process_is_restarted_at_the_same_address(model: LocalChatModel) -> None:
    address, pid = model.base_url, model.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while model.pid in {pid, None}:
        await asyncio.sleep(0.05)
    await model.wait_serving()
    assert model.base_url == address
    async with httpx2.AsyncClient() as plain:
        headers = {"Authorization": f"Bearer {model.api_key}"}
        assert (await plain.get(f"{address}/models", headers=headers)).status_code == 200
        assert (await plain.get(f"{address}/models")).status_code == 401


async def test_the_key_is_in_no_command_line_and_no_file(model: LocalChatModel) -> None:
    assert model.pid is not None
    process = psutil.Process(model.pid)
    assert not any(model.api_key in word for word in process.cmdline())
    assert not any(model.api_key in value for value in process.environ().values())
    assert not list(model.cache_folder.glob("config-*"))


def test_the_process_ends_with_the_one_that_started_it() -> None:
    program = textwrap.dedent(
        """
        import asyncio, time
        from strata.standalone.chat_model.local_model import LocalChatModel
        from strata.standalone.chat_model.settings import LocalDemoSettings
        async def main():
            model = LocalChatModel(LocalDemoSettings().local_demo_cache)
            await model.ensure()
            await model.start()
            print(model.pid, flush=True)
            await asyncio.sleep(600)
        asyncio.run(main())
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        deadline = time.monotonic() + 60
        while psutil.pid_exists(child):
            assert time.monotonic() < deadline
            time.sleep(0.05)
