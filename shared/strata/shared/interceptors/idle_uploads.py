"""Ends idle uploads, which occupy a slot that other calls could use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from strata.protocol.errors import DeadlineExceededError
from strata.shared.interceptors.pipeline import Next, ServedMethod, ServerCall

_UPLOAD = "Upload"


def is_upload(method: ServedMethod) -> bool:
    """Returns whether clients upload with a method.

    Uploads are client-streaming methods and bidirectional ones whose name begins with "Upload".
    """
    name = method.path.rpartition("/")[2]
    alone = method.shape.request_streaming and not method.shape.response_streaming
    upload = alone or (method.shape.request_streaming and name.startswith(_UPLOAD))
    return upload and method.known and not method.infrastructure


class IdleUploads:
    """Limits the time between two messages of an upload.

    Other bidirectional streams may be idle, because their client sends only answers. The time in
    which the server processes a message does not count.

    Args:
        seconds: Time that the server waits for the next message.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def bind(self, method: ServedMethod, proceed: Next) -> Next:
        """Returns the call with the idle limit on its requests."""
        if not is_upload(method):
            return proceed

        async def run(call: ServerCall) -> Any:
            call.request = self._timed(call.request)
            return await proceed(call)

        return run

    async def _timed(self, requests: Any) -> AsyncIterator[Any]:
        messages = aiter(requests)
        while True:
            try:
                async with asyncio.timeout(self._seconds) as scope:
                    message = await anext(messages)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not scope.expired():
                    raise
                raise DeadlineExceededError(
                    f"The upload sent nothing for {self._seconds:g} seconds and was ended. Send it"
                    " again without such a pause."
                ) from None
            yield message
