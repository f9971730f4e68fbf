"""A strict, scripted model API on a real socket, in both dialects.

    async with ModelServer() as server:
        server.script(call("memory_insert", {...}), say("Noted."))
        client = AsyncOpenAI(base_url=server.openai_url, api_key="any")

It answers as scripted, and refuses with 400 what a real provider would refuse: see `violations`.
Run as a program it answers like a simple agent with memory, for manual runs and benchmarks:
`python tests/doubles/model_server.py --port 8090`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

if __name__ == "__main__":
    # When it is run as a program, the folder that holds this package is not on the path yet.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from doubles import (
    anthropic_dialect,
    azure_routes,
    cloud_routes,
    memory_persona,
    openai_dialect,
    responses_dialect,
    services,
)
from doubles.http_server import CutError, HttpRequest, HttpResponse, HttpServer
from doubles.openai_dialect import RefusedError
from doubles.script import (
    Dialect,
    Fault,
    ModelCall,
    Reply,
    Responder,
    Step,
    overflow,
    unauthorized,
    with_ids,
)

_PATHS: dict[str, Dialect] = {
    "/v1/chat/completions": "openai",
    "/v1/messages": "anthropic",
    "/v1/responses": "openai_responses",
}
_EMBEDDING_SIZE = 16


class ModelServer:
    """A model API for tests.

    Args:
        responder: Answers requests for which the script has no step left.
        models: Names to list.
        api_keys: Keys to accept; any if empty.
        context_window: Refuse prompts of more tokens (four bytes each); None for no limit.
        port: 0 for a free one.
        service: Name of a known service, whose own rules hold as well.

    Attributes:
        requests: Every model call that came in, refused ones included.
        targets: Path and query of each of them.
        received: Set once a model call has come in.
        violations: Rules that requests broke.
        refusals: What the service refused beyond them.
        refuses: Rules of one model, beyond those of the API.
        meanwhile: Awaited before each answer; simulates events during the model call.
    """

    def __init__(
        self,
        responder: Responder | None = None,
        *,
        models: Iterable[str] = ("test-model",),
        api_keys: Iterable[str] = (),
        context_window: int | None = None,
        port: int = 0,
        service: str = "",
    ) -> None:
        self._responder = responder
        self._models = tuple(models)
        self._keys = frozenset(api_keys)
        self._window = context_window
        self._service = service
        self._http = HttpServer(self._handle, port)
        self._steps: deque[Step] = deque()
        self._number = 0
        self.requests: list[ModelCall] = []
        self.targets: list[str] = []
        self.received = asyncio.Event()
        self.violations: list[str] = []
        self.refusals: list[str] = []
        self.refuses: Callable[[ModelCall], Fault | None] | None = None
        self.meanwhile: Callable[[ModelCall], Awaitable[None]] | None = None

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    @property
    def openai_url(self) -> str:
        """Base URL for OpenAI's SDK."""
        return f"{self._http.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """Base URL for Anthropic's SDK."""
        return self._http.url

    @property
    def abandoned(self) -> asyncio.Event:
        """Set once a client has left a stream before its end."""
        return self._http.abandoned

    def script(self, *steps: Step) -> None:
        """Adds answers, one for each request to come."""
        self._steps.extend(steps)

    def respond(self, responder: Responder) -> None:
        """Sets the function that answers requests after the end of the script."""
        self._responder = responder

    def reset(self) -> None:
        """Removes scripts, settings and records of an earlier test."""
        self.requests.clear()
        self.violations.clear()
        self.received.clear()
        self.abandoned.clear()
        self.targets.clear()
        self._steps.clear()
        self._responder = None
        self.meanwhile = None
        self.refuses = None

    async def _handle(self, request: HttpRequest) -> HttpResponse:
        routed: HttpRequest | HttpResponse = request
        if self._service == "azure":
            routed = azure_routes.route(request, self._models, self._keys)
        elif self._service == "bedrock":
            routed = cloud_routes.bedrock(request, self._keys)
        elif self._service == "vertex":
            routed = cloud_routes.vertex(request, self._keys)
        if isinstance(routed, HttpResponse):
            self.refusals.append(str(routed.body))
            return routed
        response = await self._handle_routed(routed)
        return cloud_routes.answer(response) if self._service == "bedrock" else response

    async def _handle_routed(self, request: HttpRequest) -> HttpResponse:
        if request.path == "/v1/models":
            return self._list_models()
        if request.path == "/v1/embeddings":
            return _embed(request.body)
        dialect = _PATHS.get(request.path)
        if dialect is None or request.method != "POST":
            return HttpResponse(404, {"error": {"message": f"no route {request.path}"}})
        call = ModelCall(dialect, request.path, request.headers, request.body)
        self.requests.append(call)
        self.targets.append(request.target)
        self.received.set()
        if self.meanwhile is not None:
            await self.meanwhile(call)
        self._number += 1
        step = self._authorize(call) or self._judge(call) or self._next(call)
        if isinstance(step, Fault):
            bodies = anthropic_dialect if dialect == "anthropic" else openai_dialect
            return HttpResponse(step.status, step.body or bodies.error_body(step), step.headers)
        return self._answer(call, step)

    def _authorize(self, call: ModelCall) -> Fault | None:
        if self._service in ("bedrock", "vertex"):
            return None  # Their dialects have checked the key already.
        bearer = call.headers.get("authorization", "").removeprefix("Bearer ")
        key = call.headers.get("x-api-key") or bearer
        return unauthorized() if self._keys and key not in self._keys else None

    def _judge(self, call: ModelCall) -> Fault | None:
        try:
            if call.dialect == "anthropic":
                anthropic_dialect.check(call.body, call.headers)
            elif call.dialect == "openai_responses":
                responses_dialect.check(call.body, _account(call))
            else:
                openai_dialect.check(call.body)
        except RefusedError as refused:
            self.violations.append(str(refused))
            return refused.fault
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.violations.append(f"malformed request: {error!r}")
            return Fault(400, f"malformed request: {error!r}", "invalid_request_error")
        refused_by_model = self.refuses(call) if self.refuses is not None else None
        if refused_by_model is not None:
            self.refusals.append(refused_by_model.message)
            return refused_by_model
        refused_by_service = services.refusal(self._service, call.body)
        if refused_by_service is not None:
            self.refusals.append(refused_by_service.message)
            return refused_by_service
        too_long = self._window is not None and _size(call) // 4 > self._window
        return overflow(call.dialect) if too_long else None

    def _next(self, call: ModelCall) -> Step:
        if self._steps:
            return self._steps.popleft()
        if self._responder is not None:
            return self._responder(call)
        self.violations.append("a request came after the end of the script")
        return Fault(400, "the script has no answer to this request", "invalid_request_error")

    def _answer(self, call: ModelCall, reply: Reply) -> HttpResponse:
        prefix = "toolu_" if call.dialect == "anthropic" else "call_"
        reply = with_ids(reply, prefix, self._number)
        model = call.body["model"]
        if call.body.get("stream"):
            frames = _frames(call, reply, model, self._number, self._service)
            if self._service == "azure":
                frames = itertools.chain([azure_routes.FILTER_RESULTS], frames)
            return HttpResponse(200, stream=_paced(frames, reply))
        bodies = anthropic_dialect if call.dialect == "anthropic" else openai_dialect
        return HttpResponse(200, bodies.whole(reply, model, self._number, _size(call)))

    def _list_models(self) -> HttpResponse:
        data = [
            {
                "id": name,
                "object": "model",
                "type": "model",
                "created": 1_700_000_000,
                "owned_by": "tests",
                "display_name": name,
                "created_at": "2026-01-01T00:00:00Z",
                "lifecycle": "active",
                "max_input_tokens": self._window,
                "max_model_len": self._window,
            }
            for name in self._models
        ]
        return HttpResponse(200, {"object": "list", "data": data, "has_more": False})


def _frames(
    call: ModelCall, reply: Reply, model: str, number: int, service: str
) -> Iterator[bytes]:
    """The events of a stream, with its faults."""
    size = _size(call)
    if call.dialect == "anthropic":
        opening = anthropic_dialect.opening(reply, model, number, size)
        deltas = anthropic_dialect.deltas(reply)
        closing = anthropic_dialect.closing(reply, size)
        error_event = anthropic_dialect.error_event
    elif call.dialect == "openai_responses":
        opening = responses_dialect.opening(model, number)
        deltas = responses_dialect.deltas(reply, _account(call))
        closing = responses_dialect.closing(reply, model, number, size)
        error_event = responses_dialect.error_event
    else:
        want_usage = (call.body.get("stream_options") or {}).get("include_usage", False)
        opening = openai_dialect.opening(model, number)
        google = service == "gemini"
        reply = replace(reply, whole_calls=True) if google else reply
        deltas = openai_dialect.deltas(reply, model, number, google=google)
        closing = openai_dialect.closing(reply, model, number, size, want_usage)
        error_event = openai_dialect.error_event
    yield from opening
    for sent, delta in enumerate(deltas):
        if reply.cut_after == sent:
            raise CutError
        if reply.end_after == sent:
            return
        if reply.error_after is not None and reply.error_after[0] == sent:
            yield error_event(reply.error_after[1])
            return
        yield delta
    yield from closing


async def _paced(frames: Iterator[bytes], reply: Reply) -> AsyncIterator[bytes]:
    for number, frame in enumerate(frames):
        if reply.pause:
            await asyncio.sleep(reply.pause)
        if reply.held is not None and number >= reply.held_after:
            await reply.held.wait()
        yield frame


def _account(call: ModelCall) -> str:
    """Returns the account of a request, derived from its key."""
    return call.headers.get("authorization", "")


def _size(call: ModelCall) -> int:
    names = ("system", "messages", "tools", "instructions", "input")
    read = {name: call.body[name] for name in names if name in call.body}
    return len(json.dumps(read, ensure_ascii=False).encode())


def _embed(body: Any) -> HttpResponse:
    """Returns vectors that depend only on the text."""
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(text)}
        for index, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": sum(map(len, texts)) // 4, "total_tokens": sum(map(len, texts)) // 4}
    answer = {"object": "list", "data": data, "model": body.get("model"), "usage": usage}
    return HttpResponse(200, answer)


def _vector(text: str) -> list[float]:
    digest = hashlib.sha256(text.encode()).digest()[:_EMBEDDING_SIZE]
    return [byte / 127.5 - 1.0 for byte in digest]


def main() -> None:
    """Serves the memory persona until interrupted."""
    parser = argparse.ArgumentParser(description="A scripted model API on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each event")
    options = parser.parse_args()

    def responder(call: ModelCall) -> Step:
        step = memory_persona.answer(call)
        return replace(step, pause=options.pause) if isinstance(step, Reply) else step

    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(responder, options.port))


async def _serve(responder: Responder, port: int) -> None:
    async with ModelServer(responder, port=port) as server:
        sys.stdout.write(f"openai {server.openai_url}\nanthropic {server.anthropic_url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
