"""Translates exceptions of OpenAI's SDK into `ModelError`, for all compatible servers."""

from __future__ import annotations

import json

import httpx2
from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

from strata.agent_loop.domain.model.errors import (
    ModelError,
    ModelErrorKind,
    classify,
    retry_after_seconds,
    too_deep_event,
)
from strata.shared.number_text import is_whole_number
from strata.shared.one_line import one_line

# Maximum number of characters of an error response without a message field, which may be a whole
# page.
_LONGEST_BODY = 500


def to_model_error(error: Exception, *, streaming: bool = False) -> ModelError:
    """Translates an exception of the SDK. `streaming`: the reply had begun."""
    if isinstance(error, APITimeoutError):
        if isinstance(error.__cause__, (httpx2.ConnectTimeout, httpx2.PoolTimeout)):
            return ModelError(ModelErrorKind.UNAVAILABLE, "No connection within the time limit.")
        return ModelError(ModelErrorKind.TIMEOUT, "The model did not answer in time.")
    if isinstance(error, APIConnectionError):
        cause = str(error.__cause__ or error)
        if streaming:
            return ModelError(ModelErrorKind.CUT_OFF, f"The stream broke off: {cause}")
        return ModelError(ModelErrorKind.UNAVAILABLE, f"The endpoint cannot be reached: {cause}")
    if isinstance(error, APIError):
        return _from_api_error(error)
    if isinstance(error, RecursionError):
        return too_deep_event()
    if isinstance(error, ValueError):
        return ModelError(ModelErrorKind.CUT_OFF, "The stream broke off inside an event.")
    return ModelError(ModelErrorKind.UNAVAILABLE, str(error) or type(error).__name__)


def _from_api_error(error: APIError) -> ModelError:
    status = error.status_code if isinstance(error, APIStatusError) else None
    # Routers report the status of the upstream provider as the code of an event.
    if status is None and error.code is not None and is_whole_number(error.code):
        status = int(error.code)
    message = _message(error)
    headers = error.response.headers if isinstance(error, APIStatusError) else {}
    return ModelError(
        classify(status, (error.code, error.type), message),
        message,
        status=status,
        code=error.code or error.type,
        retry_after=retry_after_seconds(headers),
    )


def _message(error: APIError) -> str:
    """Returns the server's error message, which some services send in their own form."""
    body = error.body
    if isinstance(body, list) and len(body) == 1 and isinstance(body[0], dict):
        # Google wraps its error in a list.
        body = body[0].get("error", body[0])
    message = body.get("message") if isinstance(body, dict) else body
    if isinstance(message, str) and message:
        return message if isinstance(body, dict) else one_line(message)[:_LONGEST_BODY]
    if isinstance(message or body, (dict, list)):
        return json.dumps(message or body, ensure_ascii=False)[:_LONGEST_BODY]
    return error.message
