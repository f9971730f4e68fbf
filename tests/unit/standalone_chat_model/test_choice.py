"""The order in which a chat model is chosen, and the message for the person."""

from strata.standalone.chat_model.choice import ConfiguredProvider, ModelChoice, Source, choose
from strata.standalone.chat_model.discovery import LocalServer
from strata.standalone.chat_model.settings import LocalDemoMode

PROVIDER = ConfiguredProvider("openai", "gpt-x")
OLLAMA = LocalServer("Ollama", "http://127.0.0.1:11434/v1", ("qwen3:8b", "llama3:8b"))
VLLM = LocalServer("vLLM", "http://127.0.0.1:8000/v1", ("mistral",))
AUTO, OFF = LocalDemoMode.AUTO, LocalDemoMode.OFF


def test_a_configured_provider_precedes_every_other_choice() -> None:
    choice = choose([PROVIDER], [OLLAMA], AUTO)
    assert (choice.source, choice.model, choice.base_url) == (Source.CONFIGURED, "gpt-x", None)
    assert choice.sentence == "Chat uses gpt-x of the configured provider openai."


def test_the_address_of_a_configured_provider_is_shown() -> None:
    choice = choose([ConfiguredProvider("mine", "m", "http://10.0.0.1/v1")], [], AUTO)
    assert choice.base_url == "http://10.0.0.1/v1"
    assert "at http://10.0.0.1/v1" in choice.sentence


def test_a_local_server_precedes_the_demo_model() -> None:
    choice = choose([], [OLLAMA, VLLM], AUTO)
    assert choice == ModelChoice(
        Source.LOCAL_SERVER,
        "No provider is configured. Chat uses qwen3:8b of the local model server at "
        "http://127.0.0.1:11434/v1 (the usual port of Ollama). It offers 1 more; agents can "
        "name another one.",
        "Ollama",
        "qwen3:8b",
        "http://127.0.0.1:11434/v1",
    )


def test_the_demo_model_identifies_itself() -> None:
    choice = choose([], [], AUTO)
    assert (choice.source, choice.model) == (Source.LOCAL_DEMO, "local-demo")
    assert "Qwen2.5-Coder-1.5B-Instruct" in choice.sentence
    assert "often wrong" in choice.sentence


def test_the_choice_is_none_when_the_demo_model_is_off() -> None:
    choice = choose([], [], OFF)
    assert (choice.source, choice.model, choice.base_url) == (Source.NONE, "", None)
    assert choice.sentence.startswith("No chat model configured: memory and search work")
    assert "STRATA_LOCAL_DEMO=off" in choice.sentence


def test_the_message_without_a_model_names_the_problem_of_the_demo_model() -> None:
    choice = choose([], [], AUTO, "there is no C++ compiler here")
    assert choice.source is Source.NONE
    assert "and there is no C++ compiler here." in choice.sentence
