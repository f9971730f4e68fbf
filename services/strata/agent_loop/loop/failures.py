"""Stop reasons and errors of runs that end because a model or a service failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind, as_sentence
from strata.agent_loop.domain.run.runs import RunFailure
from strata.protocol.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    Reason,
    ResourceExhaustedError,
    StrataError,
    UnauthenticatedError,
    UnavailableError,
)
from strata.shared.stop_reasons import StopReason

_API = StopReason.LLM_API_ERROR
_REASONS: dict[ModelErrorKind, tuple[StopReason, Reason]] = {
    ModelErrorKind.AUTHENTICATION: (_API, Reason.MODEL_AUTHENTICATION),
    ModelErrorKind.RATE_LIMITED: (_API, Reason.MODEL_RATE_LIMITED),
    ModelErrorKind.UNAVAILABLE: (_API, Reason.MODEL_UNAVAILABLE),
    ModelErrorKind.TIMEOUT: (_API, Reason.MODEL_UNAVAILABLE),
    ModelErrorKind.CUT_OFF: (_API, Reason.MODEL_UNAVAILABLE),
    ModelErrorKind.CONTEXT_OVERFLOW: (_API, Reason.CONTEXT_WINDOW_EXCEEDED),
    ModelErrorKind.BAD_REQUEST: (_API, Reason.MODEL_REQUEST_REFUSED),
    ModelErrorKind.IMAGES_REFUSED: (_API, Reason.MODEL_REQUEST_REFUSED),
    ModelErrorKind.REFUSED: (_API, Reason.MODEL_REQUEST_REFUSED),
    ModelErrorKind.INVALID_REPLY: (StopReason.INVALID_LLM_RESPONSE, Reason.MODEL_UNAVAILABLE),
    ModelErrorKind.NOT_CONFIGURED: (_API, Reason.MODEL_NOT_CONFIGURED),
}
_WORTH_REPEATING = frozenset({ModelErrorKind.TIMEOUT, ModelErrorKind.INVALID_REPLY})

# Errors that do not end the run: another dispatch may succeed, or has taken over.
_NOT_ENDED = (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
)


_AFTER_REFUSAL = (
    "The messages are kept. If the next ones are refused too, fork the conversation from a message"
    " before the refused text, or ask another model."
)
_REMEDIES = {
    "system prompt": "Shorten the system prompt",
    "memory blocks": "Shorten or detach memory blocks",
    "tool rules": "Remove tool rules",
    "files": "Close files or detach folders",
    "metadata": "Use fewer or shorter archival tags",
    "tools": "Take tools from the agent",
}


class StepFailedError(Exception):
    """A step failed; the run ends with this stop reason and failure.

    Attributes:
        problem: What went wrong, without advice on what to do next.
    """

    def __init__(
        self, stop_reason: StopReason, failure: RunFailure, model_error: ModelError | None = None
    ) -> None:
        super().__init__(failure.message)
        self.model_error = model_error
        self.stop_reason = stop_reason
        self.failure = failure
        self.problem = failure.message if model_error is None else model_error.message


def from_model_error(error: ModelError) -> StepFailedError:
    """Returns the error of a run whose model call failed. The user's message is stored."""
    stop_reason, reason = _REASONS[error.kind]
    retryable = error.retryable or error.kind in _WORTH_REPEATING
    failure = RunFailure(reason, _advised(error.message, error), retryable)
    return StepFailedError(stop_reason, failure, error)


def _advised(message: str, error: ModelError | None) -> str:
    """Returns a message with advice on what to do after an error, if there is any."""
    if error is None or error.kind is not ModelErrorKind.REFUSED:
        return message
    # The refused text stays in the window, and providers may refuse every request with it.
    return f"{as_sentence(message)} {_AFTER_REFUSAL}"


def all_failed(first: StepFailedError, fallback_errors: Mapping[str, str]) -> StepFailedError:
    """Returns the error of a run in which all fallback models failed too.

    Args:
        first: How the agent's own model failed.
        fallback_errors: Why the fallback models failed, by handle.
    """
    descriptions = "; ".join(
        f"{handle}: {message.rstrip('. ')}" for handle, message in fallback_errors.items()
    )
    message = f"{first.problem} The fallback models could not answer either: {descriptions}."
    error = first.model_error
    return StepFailedError(
        first.stop_reason, replace(first.failure, message=_advised(message, error)), error
    )


def ends_run(error: StrataError) -> bool:
    """Returns whether an error of a service ends the run, since every dispatch would fail again."""
    return not isinstance(error, _NOT_ENDED)


def from_service_error(error: StrataError) -> StepFailedError:
    """Returns the error of a run that a permanent error of a service ends."""
    return StepFailedError(StopReason.ERROR, RunFailure(error.reason, error.message))


def empty_reply() -> StepFailedError:
    """Returns the error of a run whose model gave empty replies."""
    return StepFailedError(
        StopReason.INVALID_LLM_RESPONSE,
        RunFailure(
            Reason.MODEL_UNAVAILABLE,
            "The model gave an empty reply, twice. The message is kept; send another one to "
            "continue.",
            retryable=True,
        ),
    )


def no_tool_call() -> StepFailedError:
    """Returns the error of a run whose model must call a tool and did not."""
    return StepFailedError(
        StopReason.NO_TOOL_CALL,
        RunFailure(
            Reason.MODEL_UNAVAILABLE,
            "No tool calls found in response, model must make a tool call. What it wrote and your"
            " message are kept; send another message to continue.",
            retryable=True,
        ),
    )


def invalid_reply(problem: str) -> StepFailedError:
    """Returns the error of a run whose reply does not satisfy the response format.

    Args:
        problem: The first violation.
    """
    return StepFailedError(
        StopReason.INVALID_LLM_RESPONSE,
        RunFailure(
            Reason.MODEL_REPLY_INVALID,
            "The reply does not satisfy the response format, even after a second request:"
            f" {problem}. Your message is kept; send another one to continue.",
            retryable=True,
        ),
    )


def nothing_archived() -> StepFailedError:
    """Returns the error of a voice memory run that did not archive its older lines."""
    return StepFailedError(
        StopReason.INVALID_LLM_RESPONSE,
        RunFailure(
            Reason.MODEL_REPLY_INVALID,
            "The run ended before store_memories had stored the older lines of the conversation."
            " They stay in the window of the voice agent and are read again.",
            retryable=True,
        ),
    )


def cut_json_reply() -> StepFailedError:
    """Returns the error of a run whose JSON reply was truncated by the output limit."""
    return StepFailedError(
        StopReason.MAX_TOKENS_EXCEEDED,
        RunFailure(
            Reason.MODEL_REPLY_INVALID,
            "The limit of output tokens was used up before the JSON of the reply was complete;"
            " raise max_output_tokens or ask for a shorter reply.",
        ),
    )


def cut_before_text() -> StepFailedError:
    """Returns the error of a run whose reply was truncated before it had any text."""
    return StepFailedError(
        StopReason.MAX_TOKENS_EXCEEDED,
        RunFailure(
            Reason.MODEL_REQUEST_REFUSED,
            "The limit of output tokens was used up before the model wrote any text;"
            " raise max_output_tokens or lower the reasoning effort.",
        ),
    )


def system_prompt_too_large(
    parts: Mapping[str, int], window: int, *, refusal: str = ""
) -> StepFailedError:
    """Returns the error of a run whose system prompt alone exceeds the context window.

    Args:
        parts: Tokens by part of the prompt, see `prompts.parts`.
        window: Tokens of the context window.
        refusal: The provider's error for a request with little else in it; empty if the model
            was not asked. With a refusal the tokens are estimated, and the provider counts more.
    """
    largest = sorted(parts.items(), key=lambda part: -part[1])
    largest_parts = ", ".join(f"{name} {tokens}" for name, tokens in largest if tokens)
    total = sum(parts.values())
    if refusal:
        problem = (
            f"The provider refused the request as too long ({refusal.rstrip('. ')}). System prompt"
            f" and tools make up nearly all of it, about {total} tokens for a context window of"
            f" {window}"
        )
    else:
        problem = (
            f"System prompt and tools take at least {total} tokens, more than the context window"
            f" of {window}"
        )
    return StepFailedError(
        StopReason.CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT,
        RunFailure(
            Reason.CONTEXT_WINDOW_EXCEEDED,
            f"{problem}: {largest_parts}. {_REMEDIES[largest[0][0]]}, or choose a model"
            " with a larger context window.",
        ),
    )


def nothing_to_answer(approval_id: str) -> StepFailedError:
    """Returns the error of a run whose approval response matches no open request."""
    return StepFailedError(
        StopReason.ERROR,
        RunFailure(
            Reason.APPROVAL_NOT_FOUND,
            f"The conversation has no open approval request {approval_id}. It may have been"
            " answered already, or the conversation continued without an answer.",
        ),
    )


def out_of_time() -> StepFailedError:
    """Returns the error of a run whose deadline has passed."""
    return StepFailedError(
        StopReason.ERROR,
        RunFailure(
            Reason.DEADLINE_EXCEEDED,
            "The deadline of the run passed; what was committed before stays.",
            retryable=True,
        ),
    )
