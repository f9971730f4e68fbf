"""``ProbeModel``: the findings from a server and its model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from doubles.http_server import HttpRequest, HttpResponse, HttpServer
from doubles.script import Call, Fault, Reply, say, unauthorized
from inner_services import InnerServices
from strata.agent_loop.models.probes import ask_server
from strata.agent_loop.models.registry import ModelEndpoint
from strata.api.agent_loop.v1 import model_service_pb2 as pb
from strata.protocol.errors import InvalidArgumentError

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def probe(services: InnerServices, handle: str, **fields: Any) -> pb.ProbeModelResponse:
    response: pb.ProbeModelResponse = await services.models.ProbeModel(
        pb.ProbeModelRequest(handle=handle, **fields)
    )
    return response


def values(response: pb.ProbeModelResponse) -> dict[str, str]:
    return {finding.name: finding.value for finding in response.findings}


@pytest.mark.parametrize("handle", ["test/test-model", "claude/test-model"])
async def test_probe_reports_answers_and_tool_calls(services: InnerServices, handle: str) -> None:
    services.model.script(
        say("OK", usage=(9, 2)), Reply(calls=(Call("report_ready", {"ready": True}),))
    )

    response = await probe(services, handle)

    findings = values(response)
    assert findings["answers"] == "yes (9 tokens in, 2 out)"
    assert findings["tool calls"] == "yes"
    assert list(response.problems) == []
    assert response.context_window == 0, "no configuration names the model"


async def test_probe_reports_the_configured_window(services: InnerServices) -> None:
    response = await probe(services, "blind/test-model", skip_requests=True)
    [window] = [finding for finding in response.findings if finding.name == "context window"]
    assert (window.tokens, window.source) == (8_000, "settings")
    assert response.context_window == 8_000
    assert services.model.requests == []


async def test_probe_reports_refused_tools_with_the_error(services: InnerServices) -> None:
    services.model.script(say("OK"), Fault(400, "tools are not supported", "invalid_request_error"))
    assert (
        "tools are not supported" in values(await probe(services, "test/test-model"))["tool calls"]
    )


async def test_model_that_does_not_answer_is_a_problem_with_the_reason(
    services: InnerServices,
) -> None:
    services.model.script(unauthorized())
    response = await probe(services, "test/test-model")
    assert "answers" not in values(response)
    [problem] = response.problems
    assert "Incorrect API key" in problem


async def test_unlisted_models_can_be_probed(services: InnerServices) -> None:
    services.model.script(say("OK"), say("No."))
    response = await probe(services, "listing/other")
    assert list(response.problems) == ["listing does not list the model."]
    assert values(response)["tool calls"].startswith("no: ")


@pytest.mark.parametrize("handle", ["", "none/such", "test", "test/"])
async def test_a_handle_without_an_endpoint_is_refused(
    services: InnerServices, handle: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        await probe(services, handle)
    assert [violation.field for violation in refused.value.violations] == ["handle"]


OLLAMA = {
    "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40_960},
    "parameters": 'stop "<|im_end|>"\nnum_ctx                        16384\ntemperature 0.6',
    "capabilities": ["completion", "tools", "thinking"],
}
LM_STUDIO = {"type": "vlm", "max_context_length": 131_072, "loaded_context_length": 8_192}
LLAMA_CPP = {"default_generation_settings": {"n_ctx": 65_536}, "modalities": {"vision": True}}


@pytest.mark.parametrize(
    ("route", "answer", "expected"),
    [
        (
            "/api/show",
            OLLAMA,
            {
                "longest context window": 40_960,
                "context window": 16_384,
                "capabilities": "completion, tools, thinking",
            },
        ),
        (
            "/api/v0/models/qwen/qwen3",
            LM_STUDIO,
            {"context window": 8_192, "longest context window": 131_072, "kind": "vlm"},
        ),
        ("/props", LLAMA_CPP, {"context window": 65_536, "images": "yes"}),
        ("/props", {"default_generation_settings": {"n_ctx": 10**30}}, {}),
        ("/props", {"default_generation_settings": {"n_ctx": True}}, {}),
        ("/props", {"default_generation_settings": [1], "modalities": "no"}, {}),
        ("/api/show", {"model_info": [], "parameters": "num_ctx x", "capabilities": {}}, {}),
        ("/none", {}, {}),
    ],
)
async def test_local_servers_are_queried_by_their_own_api(
    route: str, answer: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    keys: list[str] = []

    async def serve(request: HttpRequest) -> HttpResponse:
        keys.append(request.headers.get("authorization", ""))
        if request.path == route:
            return HttpResponse(200, json.loads(json.dumps(answer)))
        return HttpResponse(404, {"error": "no route"})

    async with HttpServer(serve) as server:
        endpoint = ModelEndpoint("local", "openai", f"{server.url}/v1", api_key="sk-local")
        findings = await ask_server(endpoint, "qwen/qwen3")
        hosted = await ask_server(ModelEndpoint("x", "openai", server.url, preset="groq"), "m")
        for kind in ("anthropic", "azure", "bedrock", "vertex", "openai_responses"):
            typed = ModelEndpoint("x", kind, server.url, api_key="secret")
            assert await ask_server(typed, "m") == [], "the key is not returned unredacted"

    assert {finding.name: finding.tokens or finding.value for finding in findings} == expected
    assert set(keys) == {"Bearer sk-local"}
    assert hosted == []


async def test_an_unavailable_or_broken_server_has_no_findings() -> None:
    async def serve(_request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, stream=_pieces())

    async def _pieces() -> Any:
        yield b"<html>"

    assert await ask_server(ModelEndpoint("x", "openai", "http://127.0.0.1:9/v1"), "m") == []
    async with HttpServer(serve) as server:
        assert await ask_server(ModelEndpoint("x", "openai", f"{server.url}/v1"), "m") == []


async def test_a_server_that_answers_without_end_has_no_findings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strata.agent_loop.models.probes.SECONDS", 0.1)

    async def serve(_request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, stream=_spaces())

    async def _spaces() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    async with HttpServer(serve) as server, asyncio.timeout(20):
        assert await ask_server(ModelEndpoint("x", "openai", f"{server.url}/v1"), "m") == []
