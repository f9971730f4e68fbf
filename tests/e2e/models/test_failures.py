"""Failures of calls in all dialects, and which are retried."""

import asyncio
import base64
import json
import socket
import traceback
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import pytest

from doubles.bench import Bench, collect, request
from doubles.http_server import HttpRequest, HttpResponse, HttpServer
from doubles.model_server import ModelServer
from doubles.script import (
    Dialect,
    Fault,
    Reply,
    cut,
    overflow,
    overloaded,
    rate_limited,
    say,
    server_error,
    unauthorized,
)
from loop_time import put_forward
from strata.agent_loop.domain.model.chat import EndpointType, ModelEvent, TextDelta, Timeouts
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.registry import ModelEndpoint


async def failure(bench: Bench, **overrides: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await bench.ask(**overrides)
    return caught.value


async def test_a_wrong_key_is_an_authentication_error_and_not_retried(bench: Bench) -> None:
    bench.server.script(unauthorized())
    error = await failure(bench)
    assert (error.kind, error.status) == (ModelErrorKind.AUTHENTICATION, 401)
    assert len(bench.server.requests) == 1
    assert "secret-key" not in str(error)


async def test_each_model_is_called_with_its_own_key(
    factory: ModelFactory, dialect: Dialect
) -> None:
    async with ModelServer(lambda _: say("ok"), api_keys=["right"]) as server:
        bench = Bench(server, factory, _type(dialect))
        await bench.ask(api_key="right")
        assert (await failure(bench, api_key="wrong")).kind is ModelErrorKind.AUTHENTICATION
        await bench.ask(api_key="right")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (rate_limited(), ModelErrorKind.RATE_LIMITED),
        (server_error(), ModelErrorKind.UNAVAILABLE),
        (server_error(503), ModelErrorKind.UNAVAILABLE),
        (overloaded(), ModelErrorKind.UNAVAILABLE),
    ],
)
async def test_a_transient_fault_is_requested_at_most_three_times(
    bench: Bench, fault: Fault, kind: ModelErrorKind
) -> None:
    bench.server.script(fault, fault, fault, say("too late"))
    error = await failure(bench)
    assert (error.kind, error.status) == (kind, fault.status)
    assert len(bench.server.requests) == 3


@pytest.mark.parametrize("fault", [rate_limited(), server_error(), cut()])
async def test_the_third_request_may_succeed(bench: Bench, fault: Fault | Reply) -> None:
    bench.server.script(fault, fault, say("Here I am."))
    _, reply = await bench.ask()
    assert reply.text == "Here I am."
    assert len(bench.server.requests) == 3


async def test_a_long_retry_delay_is_returned_to_the_caller(bench: Bench) -> None:
    bench.server.script(rate_limited(retry_after=3600))
    error = await failure(bench)
    assert error.retry_after == 3600
    assert len(bench.server.requests) == 1


async def test_the_retry_delay_of_the_provider_is_respected(bench: Bench) -> None:
    bench.server.script(rate_limited(retry_after=0.2), say("ok"))
    start = asyncio.get_running_loop().time()
    await bench.ask()
    assert asyncio.get_running_loop().time() - start >= 0.2


async def test_a_stream_cut_after_its_first_event_is_an_error_and_not_retried(bench: Bench) -> None:
    broken = cut(after=2)
    bench.server.script(broken, say("never asked"))
    seen: list[ModelEvent] = []

    async def watch() -> None:
        async for event in bench.model().stream(request()):
            seen.append(event)  # noqa: PERF401  what was seen before the error counts

    with pytest.raises(ModelError) as caught:
        await watch()
    assert caught.value.kind is ModelErrorKind.CUT_OFF
    # The two pieces may have arrived together.
    texts = [event.text for event in seen if isinstance(event, TextDelta)]
    assert len(texts) == len(seen)
    assert "".join(texts) == broken.text[: 2 * broken.piece]
    assert len(bench.server.requests) == 1


async def test_a_stream_that_ends_early_without_an_error_is_cut_off(bench: Bench) -> None:
    bench.server.script(Reply(text="This would go on and on.", end_after=1))
    assert (await failure(bench)).kind is ModelErrorKind.CUT_OFF


async def test_a_prompt_over_the_context_window_is_recognised(
    bench: Bench, dialect: Dialect
) -> None:
    bench.server.script(overflow(dialect))
    assert (await failure(bench)).kind is ModelErrorKind.CONTEXT_OVERFLOW
    assert len(bench.server.requests) == 1


async def test_the_server_measures_the_prompt(factory: ModelFactory, dialect: Dialect) -> None:
    async with ModelServer(lambda _: say("ok"), context_window=1000) as server:
        bench = Bench(server, factory, _type(dialect))
        await bench.ask("short")
        with pytest.raises(ModelError) as caught:
            await bench.ask("long " * 1000)
    assert caught.value.kind is ModelErrorKind.CONTEXT_OVERFLOW


async def test_an_error_inside_the_stream_is_mapped(bench: Bench) -> None:
    bench.server.script(Reply(text="As I was saying", error_after=(1, overloaded())))
    error = await failure(bench)
    assert error.kind is ModelErrorKind.UNAVAILABLE
    assert error.message == "Overloaded"
    assert len(bench.server.requests) == 1


async def test_an_error_before_the_first_event_is_retried(bench: Bench) -> None:
    bench.server.script(Reply(text="x", error_after=(0, overloaded())), say("Better now."))
    _, reply = await bench.ask()
    assert reply.text == "Better now."


async def test_an_overflow_inside_the_stream_is_recognised(bench: Bench, dialect: Dialect) -> None:
    bench.server.script(Reply(text="x", error_after=(0, overflow(dialect))))
    assert (await failure(bench)).kind is ModelErrorKind.CONTEXT_OVERFLOW


async def test_a_refused_reply_is_an_error_with_its_reason(bench: Bench, dialect: Dialect) -> None:
    bench.server.script(Reply(refusal="I will not."))
    error = await failure(bench)
    assert (error.kind, error.message) == (ModelErrorKind.REFUSED, "I will not.")


async def test_an_unknown_model_is_a_bad_request(bench: Bench) -> None:
    bench.server.script(Fault(404, "model: nothing", "not_found_error", "model_not_found"))
    assert (await failure(bench)).kind is ModelErrorKind.BAD_REQUEST


async def test_a_server_that_does_not_listen_is_unavailable(bench: Bench) -> None:
    # Bound but not listening, so that no other process uses the port.
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        assert (await failure(bench, base_url=url)).kind is ModelErrorKind.UNAVAILABLE


async def test_a_stream_without_a_first_event_times_out(bench: Bench) -> None:
    bench.server.script(*[Reply(text="slow", pause=3_600)] * 3)
    asking = asyncio.create_task(failure(bench, timeouts=Timeouts(first_event=60)))
    for _ in range(3):
        async with asyncio.timeout(30):
            await bench.server.received.wait()
        bench.server.received.clear()
        put_forward(60)
    error = await asking
    assert error.kind is ModelErrorKind.TIMEOUT
    assert len(bench.server.requests) == 3


async def test_a_stream_that_never_ends_times_out(bench: Bench) -> None:
    bench.server.script(Reply(text="word " * 1000, pause=0.05))
    error = await failure(bench, timeouts=Timeouts(total=0.6))
    assert error.kind is ModelErrorKind.TIMEOUT


async def test_closing_the_stream_aborts_the_call(bench: Bench) -> None:
    bench.server.script(Reply(text="word " * 1000, pause=0.02))
    async with aclosing(bench.model().stream(request())) as events:
        assert isinstance(await anext(events), TextDelta)
    async with asyncio.timeout(60):
        await bench.server.abandoned.wait()


async def test_cancelling_the_task_aborts_the_call(bench: Bench) -> None:
    bench.server.script(Reply(text="word " * 1000, pause=0.02))
    task = asyncio.create_task(collect(bench.model(), request()))
    async with asyncio.timeout(60):
        await bench.server.received.wait()
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await bench.server.abandoned.wait()


async def test_a_model_can_be_used_after_a_failed_call(bench: Bench) -> None:
    bench.server.script(cut(after=1), say("Again."))
    await failure(bench)
    assert (await bench.ask())[1].text == "Again."


def _type(dialect: Dialect) -> EndpointType:
    return dialect


async def test_a_timeout_before_the_first_event_is_retried(bench: Bench) -> None:
    bench.server.script(Reply(text="late", pause=3_600), say("Here I am."))
    asking = asyncio.create_task(bench.ask(timeouts=Timeouts(first_event=300, total=3_000)))
    async with asyncio.timeout(60):
        await bench.server.received.wait()
    put_forward(300)
    _, reply = await asking
    assert reply.text == "Here I am."
    assert len(bench.server.requests) == 2


async def test_status_429_is_a_rate_limit_with_any_body(bench: Bench) -> None:
    fault = Fault(429, "The server had an error.", "server_error", "server_error")
    bench.server.script(fault, fault, fault)
    error = await failure(bench)
    assert (error.kind, error.status) == (ModelErrorKind.RATE_LIMITED, 429)


KEY = 'k3y/with+odd"chars\\of-40-letters-0123456789'


@pytest.mark.parametrize(
    "shown",
    [
        KEY,
        quote(KEY, safe=""),
        base64.b64encode(KEY.encode()).decode(),
        json.dumps(KEY)[1:-1],
        f"Bearer {KEY}",
        KEY[:25] + "...",
        "x" * 3_000 + KEY,
    ],
)
@pytest.mark.parametrize("status", [401, 400, 500, 200])
async def test_key_that_the_provider_repeats_is_redacted(
    bench: Bench, shown: str, status: int
) -> None:
    fault = Fault(status if status != 200 else 529, f"Who is {shown}?", type=shown, code=shown)
    step = fault if status != 200 else Reply(text="As I was saying", error_after=(1, fault))
    bench.server.script(step, step, step)
    error = await failure(bench, api_key=KEY)
    output = "".join(traceback.format_exception(error)) + repr(vars(error))
    for form in (KEY, shown, KEY[:25], base64.b64encode(KEY.encode()).decode()):
        assert form not in output
    assert "[secret API key]" in error.message


async def test_key_is_redacted_where_models_are_listed(
    factory: ModelFactory, dialect: Dialect
) -> None:
    async def echo(asked: HttpRequest) -> HttpResponse:
        sent = asked.headers.get("x-api-key") or asked.headers.get("authorization", "")
        return HttpResponse(403, {"error": {"message": f"You sent {sent}.", "type": "x"}})

    async with HttpServer(echo) as server:
        endpoint = ModelEndpoint("test", _type(dialect), base_url=server.url, api_key=KEY)
        [listed] = await factory.list_models([endpoint])
    assert listed.error is not None
    assert KEY not in str(listed.error)
    assert "[secret API key]" in str(listed.error)
