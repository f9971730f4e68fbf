"""The line that a service logs for a call."""

from __future__ import annotations

import logging
from typing import Any

import grpc.aio
import pytest

from integration.channels.conftest import Start
from polling import eventually
from strata.protocol.errors import UnavailableError

DETAIL = "could not extend file: No space left on device"


async def test_detail_of_an_error_is_logged_and_not_sent(
    start: Start, echo: Any, keys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            error = UnavailableError("the database cannot do its work now")
            error.detail = DETAIL
            raise error

    server = await start(Servicer())
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = echo.pb_grpc.EchoServiceStub(channel)
        with caplog.at_level(logging.WARNING):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.Echo(echo.pb.Note(text="x"), metadata=keys.metadata())
            # The server logs the call after it has sent the status.
            await eventually(
                lambda: [record for record in caplog.records if DETAIL in str(record.__dict__)]
            )
    assert raised.value.details() == "the database cannot do its work now"
    assert DETAIL not in str(raised.value.trailing_metadata())
