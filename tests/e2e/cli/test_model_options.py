"""Commands that list models and their properties, and options that choose one for an agent."""

from __future__ import annotations

from command_line import Run
from e2e.cli.scripted import ScriptedGateway
from strata.api.agent_loop.v1 import model_service_pb2 as pb


async def test_agent_is_created_with_its_models_in_order(
    strata: Run, gateway: ScriptedGateway
) -> None:
    models = ("--model", "a/one", "--fallback-models", "b/two, c/three")
    done = await strata("agents", "create", "bob", *models)
    assert done.code == 0, done
    [request] = gateway.agents.created
    assert request.model.handle == "a/one"
    assert request.model.fallback_models == ["b/two", "c/three"]


async def test_change_of_the_fallback_models_keeps_the_rest_of_the_configuration(
    strata: Run, gateway: ScriptedGateway
) -> None:
    agent = gateway.agents.add("ann")
    done = await strata("agents", "update", "ann", "--fallback-models", "b/two")
    assert done.code == 0, done
    assert (agent.model.handle, agent.model.max_output_tokens) == ("local/tiny", 99)
    assert agent.model.fallback_models == ["b/two"]
    shown = await strata("agents", "show", "ann")
    assert "b/two" in shown.out

    await strata("agents", "update", "ann", "--model", "a/one")
    assert agent.model.fallback_models == ["b/two"]
    await strata("agents", "update", "ann", "--fallback-models", "")
    assert (agent.model.handle, list(agent.model.fallback_models)) == ("a/one", [])


async def test_temperature_and_output_tokens_are_set_and_shown(
    strata: Run, gateway: ScriptedGateway
) -> None:
    options = ("--temperature", "0", "--max-output-tokens", "9")
    done = await strata("agents", "create", "bob", *options)
    assert done.code == 0, done
    [request] = gateway.agents.created
    assert request.model.HasField("temperature")
    assert (request.model.temperature, request.model.max_output_tokens) == (0.0, 9)
    agent = gateway.agents.add("ann")
    done = await strata("agents", "update", "ann", "--temperature", "1.5")
    assert done.code == 0, done
    model = agent.model
    assert (model.handle, model.temperature, model.max_output_tokens) == ("local/tiny", 1.5, 99)
    shown = (await strata("agents", "show", "ann")).out
    assert {"temperature: 1.5", "output tokens: 99"} <= set(shown.splitlines())


async def test_model_without_a_known_context_window_is_listed_as_unknown(
    strata: Run, gateway: ScriptedGateway
) -> None:
    gateway.models.models = [
        pb.Model(
            handle="a/known",
            context_window=128_000,
            context_window_source="table",
            max_output_tokens=16_384,
        ),
        pb.Model(handle="a/listed", context_window=8_192, context_window_source="server"),
        pb.Model(handle="a/other"),
    ]
    done = await strata("models")
    rows = [line.split("\t") for line in done.out.splitlines()[1:]]
    assert [row[2:4] for row in rows] == [["128,000*", "16,384"], ["8,192", ""], ["unknown", ""]]
    assert "documents of 2026-01-31" in done.err
    assert "strata models probe HANDLE" in done.err


async def test_probe_shows_results_and_failed_requests(
    strata: Run, gateway: ScriptedGateway
) -> None:
    gateway.models.findings = pb.ProbeModelResponse(
        findings=[pb.ModelFinding(name="images", value="yes\x1b[31m", source="GET /props")],
        problems=["The model did not answer: no."],
    )
    done = await strata("models", "probe", "a/one", "--no-requests")
    assert done.code == 0, done
    assert done.out.splitlines()[1].split("\t") == ["images", "yes[31m", "GET /props"]
    assert "The model did not answer: no." in done.err
    assert "Its context window is unknown" in " ".join(done.err.split())
    [request] = gateway.models.probed
    assert (request.handle, request.skip_requests) == ("a/one", True)
