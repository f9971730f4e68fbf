"""The chat server over real sockets, called with the official SDK and with plain HTTP."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest

from strata.standalone.chat_model.serving import web

HELLO: Any = [{"role": "user", "content": "hello"}]
PROMPT = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_reply_without_streaming_has_text_and_usage(running: Any) -> None:
    with running.client() as client:
        reply = client.chat.completions.create(model="local-demo", messages=HELLO, temperature=0)
    assert reply.choices[0].message.content == "Hello wörld"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(PROMPT)
    assert reply.usage.completion_tokens == 4
    assert reply.usage.prompt_tokens_details.cached_tokens == 3
    assert running.engine.prompts == [PROMPT]


def test_a_stream_has_the_same_text_and_usage_at_the_end(running: Any) -> None:
    with running.client() as client:
        chunks = list(
            client.chat.completions.create(
                model="local-demo",
                messages=HELLO,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    assert [chunk.choices[0].delta.content for chunk in chunks if chunk.choices] == [
        *("", "Hel", "lo ", "w", "örld"),
        None,
    ]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage.total_tokens == len(PROMPT) + 4
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_reply_ends_at_its_token_limit(running: Any) -> None:
    with running.client() as client:
        reply = client.chat.completions.create(model="local-demo", messages=HELLO, max_tokens=2)
    assert reply.choices[0].message.content == "Hello "
    assert reply.choices[0].finish_reason == "length"


def test_a_reply_ends_at_a_stop_text(running: Any) -> None:
    with running.client() as client:
        reply = client.chat.completions.create(model="local-demo", messages=HELLO, stop=["lo w"])
    assert reply.choices[0].message.content == "Hel"
    assert reply.choices[0].finish_reason == "stop"


def test_a_response_schema_is_passed_to_the_engine(running: Any) -> None:
    with running.client() as client:
        client.chat.completions.create(
            model="local-demo",
            messages=HELLO,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "object"}},
            },
        )
    assert running.engine.samplings[0].schema == '{"type": "object"}'


def test_a_prompt_without_space_for_a_reply_is_a_context_length_error(running: Any) -> None:
    long: Any = [{"role": "user", "content": "x" * 500}]
    with running.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="local-demo", messages=long)
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length is 200 tokens" in str(caught.value)


def test_a_schema_that_cannot_be_used_is_a_bad_request(running: Any) -> None:
    with running.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="local-demo",
            messages=HELLO,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "impossible"}},
            },
        )
    assert "no such type" in str(caught.value)


def test_an_engine_failure_is_sent_to_the_client_and_the_server_continues(running: Any) -> None:
    with running.client() as client:
        with pytest.raises(openai.InternalServerError, match="decode failed"):
            client.chat.completions.create(model="local-demo", messages=HELLO, seed=666)
        with pytest.raises(openai.APIError, match="decode failed"):
            list(
                client.chat.completions.create(
                    model="local-demo", messages=HELLO, seed=666, stream=True
                )
            )
        assert client.models.list().data[0].id == "local-demo"


def test_a_wrong_key_is_refused(running: Any) -> None:
    with running.client("another") as client:
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
        with pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(model="local-demo", messages=HELLO)
    assert running.engine.prompts == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"not json", 400),
        (b"[1]", 400),
        (b"[" * 100_000, 400),
        (b"\xff\xfe", 400),
        (b"{}", 400),
        (b"x" * (web.MAX_BODY_BYTES + 1), 413),
    ],
)
def test_a_wrong_body_is_refused(running: Any, body: bytes, status: int) -> None:
    headers = {"Authorization": "Bearer a-test-key"}
    with httpx2.Client(headers=headers) as client:
        try:
            answer = client.post(f"{running.url}/v1/chat/completions", content=body)
        except httpx2.WriteError:  # refused before the body was read
            assert status == 413
        else:
            assert answer.status_code == status
            assert answer.json()["error"]["code"]


def test_an_unknown_path_is_not_found(running: Any) -> None:
    headers = {"Authorization": "Bearer a-test-key"}
    with httpx2.Client(headers=headers) as client:
        assert client.get(f"{running.url}/nothing").status_code == 404
        assert client.post(f"{running.url}/v1/models", json={}).status_code == 404
        assert client.get(f"{running.url}/health").json() == {"status": "ok"}
        tokens = client.post(f"{running.url}/tokenize", json={"content": "ab"}).json()
        assert tokens == {"tokens": [97, 98]}


def test_generation_stops_when_the_client_disconnects(running: Any) -> None:
    running.engine.proceed.clear()
    with running.client() as client:
        stream = client.chat.completions.create(model="local-demo", messages=HELLO, stream=True)
        assert running.engine.begun.acquire(timeout=30)
        stream.close()
    assert running.engine.ended.acquire(timeout=30)
    running.engine.proceed.set()
    with running.client() as client:
        reply = client.chat.completions.create(model="local-demo", messages=HELLO)
    assert reply.choices[0].message.content == "Hello wörld"


def test_an_unstreamed_request_of_a_disconnected_client_is_dropped(running: Any) -> None:
    running.engine.proceed.clear()
    body = b'{"messages": [{"role": "user", "content": "hello"}]}'
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a-test-key\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", running.server.server_address[1])) as connection:
        connection.sendall(head.encode() + body)
        assert running.engine.begun.acquire(timeout=30)
    assert running.engine.ended.acquire(timeout=30)


def test_the_queued_request_of_a_disconnected_client_is_removed(running: Any) -> None:
    running.engine.proceed.clear()
    queue = running.server.chat._turnstile._queue
    with running.client() as client:
        first = client.chat.completions.create(model="local-demo", messages=HELLO, stream=True)
        wait_for(lambda: len(queue) == 1)
        second = client.chat.completions.create(model="local-demo", messages=HELLO, stream=True)
        wait_for(lambda: len(queue) == 2)
        second.close()
        wait_for(lambda: len(queue) == 1)
        running.engine.proceed.set()
        text = "".join(chunk.choices[0].delta.content or "" for chunk in first)
    assert text == "Hello wörld"
    assert len(running.engine.prompts) == 1


def test_a_waiting_stream_is_kept_alive(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "KEEP_ALIVE_SECONDS", 0.02)
    running.engine.proceed.clear()
    headers = {"Authorization": "Bearer a-test-key"}
    body = {"messages": HELLO, "stream": True}
    with (
        httpx2.Client(headers=headers) as client,
        client.stream("POST", f"{running.url}/v1/chat/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        assert next(line for line in lines if line.startswith(":")) == ": waiting"
        running.engine.proceed.set()
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_requests_over_the_queue_limit_are_refused(running: Any) -> None:
    running.engine.proceed.clear()
    queue = running.server.chat._turnstile._queue
    with running.client() as client:

        def ask() -> None:
            client.chat.completions.create(model="local-demo", messages=HELLO)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(queue) == 3)
        with pytest.raises(openai.InternalServerError, match="2 requests are waiting") as caught:
            ask()
        assert caught.value.status_code == 503
        running.engine.proceed.set()
        for thread in threads:
            thread.join()
    assert len(running.engine.prompts) == 3
