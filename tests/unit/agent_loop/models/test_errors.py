"""Errors are named by what the caller can do about them."""

from datetime import UTC, datetime

import pytest

from strata.agent_loop.models.errors import (
    ModelError,
    ModelErrorKind,
    classify,
    retry_after_seconds,
)

# The words of OpenAI, Anthropic, vLLM, llama.cpp, LM Studio and Ollama.
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
]


@pytest.mark.parametrize(("status", "code", "message"), OVERFLOWS)
def test_every_servers_overflow_is_recognised(status: int, code: str | None, message: str) -> None:
    assert classify(status, (code,), message) is ModelErrorKind.CONTEXT_OVERFLOW


@pytest.mark.parametrize(
    ("status", "codes", "message", "kind"),
    [
        (401, (None,), "no", ModelErrorKind.AUTHENTICATION),
        (403, (None,), "no", ModelErrorKind.AUTHENTICATION),
        (402, ("billing_error",), "pay", ModelErrorKind.AUTHENTICATION),
        (429, (None, None), "slow down", ModelErrorKind.RATE_LIMITED),
        # A limit on tokens per minute is no overflow, however long the prompt.
        (429, (None,), "maximum context length per minute", ModelErrorKind.RATE_LIMITED),
        (529, ("overloaded_error",), "Overloaded", ModelErrorKind.UNAVAILABLE),
        (500, (None,), "oops", ModelErrorKind.UNAVAILABLE),
        (None, (None,), "an event without a code", ModelErrorKind.UNAVAILABLE),
        (None, ("rate_limit_error",), "in a stream", ModelErrorKind.RATE_LIMITED),
        (400, ("invalid_request_error",), "bad", ModelErrorKind.BAD_REQUEST),
        (404, ("model_not_found",), "no such model", ModelErrorKind.BAD_REQUEST),
        (400, ("content_filter",), "filtered", ModelErrorKind.REFUSED),
    ],
)
def test_kinds(
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


def test_an_exhausted_account_is_not_worth_a_second_try() -> None:
    kind = ModelErrorKind.RATE_LIMITED
    assert ModelError(kind, "slow down").retryable
    assert not ModelError(kind, "no money", code="insufficient_quota").retryable
    assert not ModelError(ModelErrorKind.TIMEOUT, "late").retryable
