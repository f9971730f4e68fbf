"""Wraps HTTP handlers so that errors have the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

import grpc.aio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from strata.gateway.http.calls import BodyTooLargeError
from strata.gateway.http.openai_api.errors import ApiError, of_call

_HOW_TO_RAISE = (
    "If the client sends the whole conversation with each message, send only the new ones, or let"
    " the operator raise STRATA_GATEWAY_LIMITS__MAX_MESSAGE_BYTES."
)

Handler = Callable[[Request], Awaitable[Response]]


def answering(handle: Handler) -> Handler:
    """Returns a handler that sends errors in the form of OpenAI's API."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except grpc.aio.AioRpcError as error:
            failure = of_call(error)
        except BodyTooLargeError as error:
            failure = ApiError(
                f"{error} {_HOW_TO_RAISE}", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            )
        except ApiError as error:
            failure = error
        return JSONResponse(failure.body, status_code=failure.status, headers=failure.headers)

    return answer
