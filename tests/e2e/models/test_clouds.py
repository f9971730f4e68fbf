"""Claude at Bedrock and Vertex: addresses, signatures, event streams and refusals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from urllib.parse import parse_qs

import jwt
import pytest
from anthropic.lib.aws._auth import _get_session as bedrock_sessions
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from doubles.bench import LOOKUP, collect, request
from doubles.cloud_routes import ACCESS_KEY, REGION, SECRET_KEY
from doubles.http_server import HttpRequest, HttpResponse, HttpServer
from doubles.model_server import ModelServer
from doubles.script import Call, Fault, Reply, say
from strata.agent_loop.convert.model_keys import model_key
from strata.agent_loop.domain.model.chat import ChatMessage, ModelRequest, ModelSettings
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.anthropic_api import bedrock, vertex
from strata.agent_loop.models.dialects.table import dialect_of
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.streaming import RetryPolicy
from strata.agent_loop.settings import AgentLoopSettings, EndpointSettings
from strata.api.agent_loop.v1.model_service_pb2 import PutModelKeyRequest

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
SIGNING = f"{ACCESS_KEY}:{SECRET_KEY}"
AUDIENCE = "https://oauth2.googleapis.com/token"
CLOUDS = ["bedrock", "vertex"]


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    # The SDK caches the credentials that it has read.
    bedrock_sessions.cache_clear()  # type: ignore[attr-defined]
    # No test requests credentials of the machine over the network.
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
async def clouds() -> AsyncIterator[dict[str, ModelServer]]:
    async with (
        ModelServer(service="bedrock", api_keys=["bedrock-key"]) as of_aws,
        ModelServer(service="vertex", api_keys=["google-token"]) as of_google,
    ):
        yield {"bedrock": of_aws, "vertex": of_google}


def settings_at(server: ModelServer, cloud: str, key: str, model: str = "") -> ModelSettings:
    ends = {"bedrock": f"?region={REGION}", "vertex": "/v1/projects/acme/locations/europe-west1"}
    url = server.anthropic_url + ends[cloud]
    name = model or {"bedrock": CLAUDE, "vertex": "claude-sonnet-4-5@20250929"}[cloud]
    return ModelSettings(f"{cloud}/{name}", cloud, name, url, key, max_reasoning_tokens=2000)


@pytest.mark.parametrize(
    ("cloud", "key"),
    [("bedrock", "bedrock-key"), ("bedrock", SIGNING), ("vertex", "google-token")],
    ids=["key-of-bedrock", "signature", "token-of-google"],
)
async def test_a_turn_with_thinking_and_calls_succeeds_on_each_cloud(
    cloud: str, key: str, clouds: dict[str, ModelServer], factory: ModelFactory
) -> None:
    server = clouds[cloud]
    model = factory.model(settings_at(server, cloud, key))
    server.script(
        Reply(reasoning="Hm.", text="Let me see.", calls=(Call("lookup", {"query": "ü"}),)),
        say("Done."),
    )
    _, first = await collect(model, request("Look."))
    assert (first.reasoning, first.text) == ("Hm.", "Let me see.")
    returns = [ChatMessage.tool(one.id, "found") for one in first.tool_calls]
    messages = [*request("Look.").messages, first.to_message(), *returns]
    _, second = await collect(model, ModelRequest(messages, [LOOKUP]))
    assert (second.text, second.usage.estimated) == ("Done.", False)
    assert (server.violations, server.refusals) == ([], [])


@pytest.mark.parametrize("key", ["", "of-another"])
async def test_a_wrong_signature_is_an_authentication_error(
    key: str, clouds: dict[str, ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not the secret")
    shown = f"{ACCESS_KEY}:{key}" if key else ""
    async with ModelFactory(RetryPolicy(1)) as factory:
        model = factory.model(settings_at(clouds["bedrock"], "bedrock", shown))
        with pytest.raises(ModelError) as caught:
            await collect(model, request())
    assert caught.value.kind is ModelErrorKind.AUTHENTICATION
    assert "does not match" in clouds["bedrock"].refusals[0]


async def test_without_a_key_the_credentials_of_the_machine_are_used(
    clouds: dict[str, ModelServer], factory: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    clouds["bedrock"].script(say("ok"))
    await collect(factory.model(settings_at(clouds["bedrock"], "bedrock", "")), request())
    assert clouds["bedrock"].refusals == []


async def test_a_key_of_a_project_signs_though_the_machine_has_a_token(
    clouds: dict[str, ModelServer], factory: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bedrock-key")
    clouds["bedrock"].script(say("ok"))
    await collect(factory.model(settings_at(clouds["bedrock"], "bedrock", SIGNING)), request())
    [asked] = clouds["bedrock"].requests
    assert asked.headers["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/")


async def test_without_any_credentials_the_error_names_them(
    clouds: dict[str, ModelServer], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, f"{tmp_path}/none")
    async with ModelFactory(RetryPolicy(1)) as factory:
        with pytest.raises(ModelError, match="could not be signed") as caught:
            await collect(factory.model(settings_at(clouds["bedrock"], "bedrock", "")), request())
    assert caught.value.kind is ModelErrorKind.AUTHENTICATION


async def test_an_error_inside_the_event_stream_is_read(clouds: dict[str, ModelServer]) -> None:
    fault = Fault(429, "Too many tokens, please wait.", "rate_limit_error")
    clouds["bedrock"].script(Reply(text="half", error_after=(1, fault)))
    async with ModelFactory(RetryPolicy(1)) as factory:
        model = factory.model(settings_at(clouds["bedrock"], "bedrock", "bedrock-key"))
        with pytest.raises(ModelError, match="Too many tokens") as caught:
            await collect(model, request())
    assert caught.value.retryable


async def test_a_truncated_event_stream_is_an_error(clouds: dict[str, ModelServer]) -> None:
    clouds["bedrock"].script(Reply(text="half of it", cut_after=1))
    async with ModelFactory(RetryPolicy(1)) as factory:
        model = factory.model(settings_at(clouds["bedrock"], "bedrock", "bedrock-key"))
        with pytest.raises(ModelError) as caught:
            await collect(model, request())
    assert caught.value.kind is ModelErrorKind.CUT_OFF


@pytest.mark.parametrize(
    ("cloud", "module", "installing"),
    [
        ("bedrock", bedrock, "pip install 'strata-agents[bedrock]'"),
        ("vertex", vertex, "pip install 'strata-agents[vertex]'"),
    ],
)
async def test_the_error_for_a_missing_package_says_how_to_install_it(
    cloud: str,
    module: object,
    installing: str,
    clouds: dict[str, ModelServer],
    factory: ModelFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_INSTALLED", False)
    with pytest.raises(ModelError) as caught:
        factory.model(settings_at(clouds[cloud], cloud, "google-token"))
    assert caught.value.kind is ModelErrorKind.NOT_CONFIGURED
    assert installing in caught.value.message


async def test_a_service_account_fetches_its_token_from_google_whatever_its_token_uri(
    clouds: dict[str, ModelServer], factory: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    account = {
        "type": "service_account",
        "client_email": "agent@acme.example",
        "private_key": pem,
        "token_uri": "http://169.254.169.254/",
    }
    claims: list[dict[str, object]] = []

    async def give(asked: HttpRequest) -> HttpResponse:
        [assertion] = parse_qs(asked.raw.decode())["assertion"]
        claims.append(jwt.decode(assertion, private.public_key(), ["RS256"], audience=AUDIENCE))
        return HttpResponse(200, {"access_token": "google-token", "expires_in": 3600})

    async with HttpServer(give) as tokens:
        monkeypatch.setattr(vertex, "TOKEN_URI", tokens.url)
        clouds["vertex"].respond(lambda _: say("ok"))
        # The form in which Google's console writes it to a file.
        stored = PutModelKeyRequest(provider="vertex", api_key=json.dumps(account, indent=2))
        key = model_key(stored, dialect_of("vertex").read_key)
        model = factory.model(settings_at(clouds["vertex"], "vertex", key))
        for _ in range(2):
            await collect(model, request())
    assert [one["iss"] for one in claims] == ["agent@acme.example"]


@pytest.mark.parametrize("key", ["{", '{"type": "external_account", "private_key": "x"}'])
async def test_other_json_is_not_a_key_and_is_not_shown(
    key: str, clouds: dict[str, ModelServer], factory: ModelFactory
) -> None:
    with pytest.raises(ModelError) as caught:
        factory.model(settings_at(clouds["vertex"], "vertex", key))
    assert caught.value.kind is ModelErrorKind.AUTHENTICATION
    assert "external_account" not in caught.value.message


def test_variables_of_the_clouds_configure_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not {"bedrock", "vertex"} & {e.name for e in AgentLoopSettings().registry().endpoints}
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bedrock-key")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("ANTHROPIC_VERTEX_PROJECT_ID", "acme")
    monkeypatch.setenv("CLOUD_ML_REGION", "europe-west1")
    endpoints = {e.name: e for e in AgentLoopSettings().registry().endpoints}
    assert endpoints["bedrock"].base_url == "https://bedrock-runtime.us-east-1.amazonaws.com"
    assert endpoints["bedrock"].api_key == "bedrock-key"
    assert endpoints["vertex"].base_url == (
        "https://europe-west1-aiplatform.googleapis.com/v1/projects/acme/locations/europe-west1"
    )


@pytest.mark.parametrize("cloud", CLOUDS)
def test_an_address_without_region_is_refused_with_an_example(cloud: str) -> None:
    with pytest.raises(ValueError, match=r"'mine'.*such as https://"):
        EndpointSettings(name="mine", preset=cloud, base_url="https://x.example").endpoint()


@pytest.mark.parametrize(
    ("variable", "missing"),
    [("AWS_BEARER_TOKEN_BEDROCK", "AWS_REGION"), ("VERTEX_API_KEY", "ANTHROPIC_VERTEX_PROJECT_ID")],
)
def test_the_error_for_a_missing_address_names_the_setting(
    variable: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "CLOUD_ML_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "a-key")
    with pytest.raises(ValueError, match=missing):
        AgentLoopSettings().registry()
