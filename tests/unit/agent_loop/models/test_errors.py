"""The kinds of model errors."""

from datetime import UTC, datetime

import pytest

from strata.agent_loop.domain.model.errors import (
    ModelError,
    ModelErrorKind,
    classify,
    retry_after_seconds,
)

# The messages of OpenAI, Anthropic, vLLM, llama.cpp, LM Studio, Ollama, Bedrock, GitHub Models,
# TGI and Groq.
OVERFLOWS = [
    (400, "context_length_exceeded", "Your input exceeds the context window of this model."),
    (400, "invalid_request_error", "prompt is too long: 213462 tokens > 200000 maximum"),
    (
        400,
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000",
    ),
    (400, "BadRequestError", "This model's maximum context length is 4096 tokens. However, ..."),
    (
        400,
        "exceed_context_size_error",
        "the request exceeds the available context size, try increasing it",
    ),
    (
        400,
        None,
        "The number of tokens to keep from the initial prompt is greater than the context length",
    ),
    (500, "api_error", "input exceeds maximum context length"),
    (
        400,
        None,
        (
            "Trying to keep the first 5306 tokens when context the overflows. However, the model"
            " is loaded with context length of only 4096 tokens, which is not enough."
        ),
    ),
    (400, "invalid_request_error", "Input is too long for requested model."),
    (
        413,
        "tokens_limit_reached",
        "Request body too large for gpt-4o model. Max size: 8000 tokens.",
    ),
    (
        422,
        "validation",
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given:"
            " 5000 `inputs` tokens and 200 `max_new_tokens`"
        ),
    ),
    (
        400,
        "invalid_request_error",
        "Please reduce the length of the messages or completion.",
    ),
]


@pytest.mark.parametrize(("status", "code", "message"), OVERFLOWS)
def test_every_servers_overflow_is_recognised(status: int, code: str | None, message: str) -> None:
    assert classify(status, (code,), message) is ModelErrorKind.CONTEXT_OVERFLOW


# The messages of OpenAI, Anthropic, vLLM, llama.cpp, OpenRouter and LM Studio.
IMAGES = [
    (400, "Invalid image_url: the image data is not valid."),
    (400, "You uploaded an unsupported image. Please make sure your image has of one the formats."),
    (400, "messages.0.content.1.image.source.base64.data: image exceeds 5 MB maximum"),
    (400, "Could not process image"),
    (400, "At least one of the image dimensions exceed max allowed size: 8000 pixels"),
    (400, "qwen is not a multimodal model"),
    (500, "image input is not supported - hint: you may need to provide the mmproj"),
    (404, "No endpoints found that support image input"),
    (400, "Model does not support images. Please use a model that does. Image content part."),
]


@pytest.mark.parametrize(("status", "message"), IMAGES)
def test_every_servers_refusal_of_images_is_recognised(status: int, message: str) -> None:
    for code in (None, "invalid_request_error", "server_error"):
        assert classify(status, (code,), message) is ModelErrorKind.IMAGES_REFUSED


@pytest.mark.parametrize(
    ("status", "message"),
    [(429, "Too many image inputs per minute"), (503, "The image server is down"), (401, "image")],
)
def test_other_errors_that_mention_images_are_not_refusals(status: int, message: str) -> None:
    assert classify(status, (None,), message) is not ModelErrorKind.IMAGES_REFUSED


@pytest.mark.parametrize(
    ("status", "codes", "message", "kind"),
    [
        (401, (None,), "no", ModelErrorKind.AUTHENTICATION),
        (403, (None,), "no", ModelErrorKind.AUTHENTICATION),
        (402, ("billing_error",), "pay", ModelErrorKind.AUTHENTICATION),
        (429, (None, None), "slow down", ModelErrorKind.RATE_LIMITED),
        # A limit on tokens per minute is not an overflow, however long the prompt.
        (429, (None,), "maximum context length per minute", ModelErrorKind.RATE_LIMITED),
        (429, ("server_error", "api_error"), "oops", ModelErrorKind.RATE_LIMITED),
        (503, ("rate_limit_error",), "busy", ModelErrorKind.UNAVAILABLE),
        (401, ("invalid_request_error",), "no key", ModelErrorKind.AUTHENTICATION),
        (403, ("content_policy_violation",), "flagged", ModelErrorKind.REFUSED),
        (529, ("overloaded_error",), "Overloaded", ModelErrorKind.UNAVAILABLE),
        (500, (None,), "oops", ModelErrorKind.UNAVAILABLE),
        (None, (None,), "an event without a code", ModelErrorKind.UNAVAILABLE),
        (None, ("rate_limit_error",), "in a stream", ModelErrorKind.RATE_LIMITED),
        (400, ("invalid_request_error",), "bad", ModelErrorKind.BAD_REQUEST),
        (404, ("model_not_found",), "no such model", ModelErrorKind.BAD_REQUEST),
        (400, ("content_filter",), "filtered", ModelErrorKind.REFUSED),
    ],
)
def test_errors_have_the_right_kind(
    status: int | None, codes: tuple[str | None, ...], message: str, kind: ModelErrorKind
) -> None:
    assert classify(status, codes, message) is kind


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 GMT"}, 30.0),
    ],
)
def test_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert retry_after_seconds(headers, now=now) == seconds


def test_exhausted_account_is_not_retried() -> None:
    kind = ModelErrorKind.RATE_LIMITED
    assert ModelError(kind, "slow down").retryable
    assert not ModelError(kind, "no money", code="insufficient_quota").retryable
    assert not ModelError(ModelErrorKind.TIMEOUT, "late").retryable


def test_a_message_is_text_that_can_be_stored_and_sent() -> None:
    assert ModelError(ModelErrorKind.REFUSED, "I will\0 not\ud800.").message == "I will not?."
