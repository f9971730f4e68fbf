"""Errors of chat model calls, independent of any provider.

Pure: the loop decides by `kind`, and `loop.failures` maps it to a reason on the wire.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum

from strata.shared.json_text import storable_text
from strata.shared.redaction import Redactor


class ModelErrorKind(StrEnum):
    """The kinds of errors that the caller handles differently."""

    AUTHENTICATION = "authentication"
    """The key is missing, wrong, not allowed to use the model, or out of credit."""
    RATE_LIMITED = "rate_limited"
    """Too many requests or an exhausted quota; see `retry_after`."""
    UNAVAILABLE = "unavailable"
    """The provider failed or cannot be reached."""
    TIMEOUT = "timeout"
    """No first event, or no end of the stream, within the limit."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The prompt does not fit into the model's window: compact and ask again."""
    BAD_REQUEST = "bad_request"
    """The provider refuses the request as malformed, or does not have the model."""
    IMAGES_REFUSED = "images_refused"
    """The provider refuses an image of the request, or the model cannot see images."""
    REFUSED = "refused"
    """The model or the provider's filter declines to answer."""
    CUT_OFF = "cut_off"
    """The stream ended before the model had finished."""
    INVALID_REPLY = "invalid_reply"
    """The reply cannot be understood."""
    NOT_CONFIGURED = "not_configured"
    """No endpoint or model of that name is configured."""


_RETRYABLE = frozenset(
    {ModelErrorKind.RATE_LIMITED, ModelErrorKind.UNAVAILABLE, ModelErrorKind.CUT_OFF}
)
# Waiting does not help if the account has no credit left.
_HOPELESS_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_OUT_OF_CREDIT = _HOPELESS_CODES | {"billing_error"}


class ModelError(Exception):
    """A call of a chat model failed.

    Attributes:
        kind: The kind of error.
        message: Text of the provider, or a description of the problem; can be shown to the user.
        status: HTTP status, if any.
        code: The provider's error code.
        retry_after: Seconds to wait, if the provider sent them.
    """

    def __init__(
        self,
        kind: ModelErrorKind,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        # A refusal is a text of the model, and an error one of the server: either may have any
        # character that JSON can express.
        message = storable_text(message)
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status = status
        self.code = code
        self.retry_after = retry_after

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.kind in _RETRYABLE and self.code not in _HOPELESS_CODES

    @property
    def out_of_credit(self) -> bool:
        """Whether the account has no credit left; the key itself is valid."""
        return self.status == 402 or self.code in _OUT_OF_CREDIT

    def redacted(self, redactor: Redactor) -> ModelError:
        """Returns the error with all keys in its text redacted."""
        return ModelError(
            self.kind,
            redactor.text(self.message),
            status=self.status,
            code=None if self.code is None else redactor.text(self.code),
            retry_after=self.retry_after,
        )

    def __str__(self) -> str:
        status = f" (HTTP {self.status})" if self.status is not None else ""
        return f"{self.kind}{status}: {self.message}"


def as_sentence(message: str) -> str:
    """Returns the message of a provider with a mark at its end, so that a sentence can follow."""
    text = message.rstrip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def naming_key(error: ModelError, owner: str) -> ModelError:
    """Returns the error of a refused key, with the owner of the key in its message.

    Args:
        error: Any error; kinds other than AUTHENTICATION are returned unchanged.
        owner: Description of the key, such as "the project's key"; empty if unknown.
    """
    if error.kind is not ModelErrorKind.AUTHENTICATION or not owner:
        return error
    return ModelError(
        error.kind,
        f"{as_sentence(error.message)} The provider was asked with {owner}.",
        status=error.status,
        code=error.code,
        retry_after=error.retry_after,
    )


def too_deep_event() -> ModelError:
    """Returns the error of a stream whose JSON is nested too deeply to be parsed."""
    return ModelError(
        ModelErrorKind.INVALID_REPLY, "An event of the model's reply is nested too deeply."
    )


class UnknownModelError(ModelError):
    """No configured endpoint offers the model.

    Attributes:
        known: Handles, or endpoint names followed by "/*", that would be accepted.
    """

    def __init__(self, message: str, known: Sequence[str]) -> None:
        listed = ", ".join(known) if known else "none; configure a model endpoint first"
        super().__init__(ModelErrorKind.NOT_CONFIGURED, f"{message} Known models: {listed}.")
        self.known = tuple(known)


# Error texts of OpenAI and Anthropic, then vLLM, llama.cpp, LM Studio and Ollama, Google, Bedrock,
# GitHub Models and TGI.
_OVERFLOW_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "tokens_limit_reached"}
)
_OVERFLOW_TEXT = re.compile(
    r"maximum context length|prompt is too long|exceeds? the (available )?context"
    r"|context (window|length|limit|size)[^.]*exceed|exceeds?[^.]*context (window|length|limit)"
    r"|greater than the context length|input length and `?max_tokens`? exceed"
    r"|longer than the context|input token count[^.]*exceeds"
    r"|input is too long for requested model|loaded with context length of only"
    r"|`?inputs`? tokens \+ `?max_new_tokens`? must be|reduce the length of the messages",
    re.IGNORECASE,
)

_IMAGES_TEXT = re.compile(
    r"\bimages? (input|url|content|exceed|dimension|size|format|part|source|block)"
    r"|\bimage_url\b|\b(vision|multi-?modal)\b|process (the |this )?image"
    r"|(invalid|unsupported|damaged|corrupt\w*|decode)[^.]*\bimage",
    re.IGNORECASE,
)

# Google responds to a wrong key with 400.
_KEY_TEXT = re.compile(r"API key (not valid|expired)|API_KEY_INVALID")

_CODE_KINDS: Mapping[str, ModelErrorKind] = {
    "authentication_error": ModelErrorKind.AUTHENTICATION,
    "permission_error": ModelErrorKind.AUTHENTICATION,
    "billing_error": ModelErrorKind.AUTHENTICATION,
    "invalid_api_key": ModelErrorKind.AUTHENTICATION,
    "rate_limit_error": ModelErrorKind.RATE_LIMITED,
    "rate_limit_exceeded": ModelErrorKind.RATE_LIMITED,
    "insufficient_quota": ModelErrorKind.RATE_LIMITED,
    "overloaded_error": ModelErrorKind.UNAVAILABLE,
    "api_error": ModelErrorKind.UNAVAILABLE,
    "server_error": ModelErrorKind.UNAVAILABLE,
    "timeout_error": ModelErrorKind.UNAVAILABLE,
    "content_filter": ModelErrorKind.REFUSED,
    "content_policy_violation": ModelErrorKind.REFUSED,
    "invalid_prompt": ModelErrorKind.REFUSED,
    "bio_policy": ModelErrorKind.REFUSED,
    "misalignment_policy_violation": ModelErrorKind.REFUSED,
    "invalid_request_error": ModelErrorKind.BAD_REQUEST,
    "not_found_error": ModelErrorKind.BAD_REQUEST,
}


def classify(status: int | None, codes: Sequence[str | None], message: str) -> ModelErrorKind:
    """Returns the kind of an error that a server reported.

    Args:
        status: HTTP status; None or 200 for an error inside a stream.
        codes: The error's code and type, the more specific first.
        message: The error's text.
    """
    refusable = status is None or status < 300 or status in (400, 413, 422, 500)
    if refusable and (_OVERFLOW_CODES.intersection(codes) or _OVERFLOW_TEXT.search(message)):
        return ModelErrorKind.CONTEXT_OVERFLOW
    # For a model without image input, llama.cpp responds with 500 and OpenRouter with 404.
    if (refusable or status in (404, 415, 501)) and _IMAGES_TEXT.search(message):
        return ModelErrorKind.IMAGES_REFUSED
    if status == 400 and _KEY_TEXT.search(message):
        return ModelErrorKind.AUTHENTICATION
    if status not in _PLAIN_STATUSES:
        for code in codes:
            if code is not None and code in _CODE_KINDS:
                return _CODE_KINDS[code]
    return _by_status(status)


# These statuses are unambiguous regardless of the body. Codes in the body distinguish the
# meanings of a 400 and of errors inside a stream.
_PLAIN_STATUSES = frozenset({401, 402, 408, 409, 429, *range(500, 600)})


def _by_status(status: int | None) -> ModelErrorKind:
    if status in (401, 402, 403):
        return ModelErrorKind.AUTHENTICATION
    if status == 429:
        return ModelErrorKind.RATE_LIMITED
    if status is None or status < 300 or status in (408, 409) or status >= 500:
        return ModelErrorKind.UNAVAILABLE
    return ModelErrorKind.BAD_REQUEST


def retry_after_seconds(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Returns the seconds of a retry header; None if there is no usable one."""
    for header, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(header, "")) / divisor
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
