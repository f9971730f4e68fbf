"""Messages in the JSON form of protobuf, converted without blocking other calls.

The conversion is written in Python, and takes about a second for the largest messages. Large ones
are converted in a thread, a few at a time. A large message without a valid key is not converted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import grpc.aio
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from google.protobuf import any_pb2, json_format
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from strata.api.gateway.v1 import admin_service_pb2, admin_service_pb2_grpc
from strata.gateway.auth.authenticator import API_KEY_HEADER
from strata.gateway.http.errors import ReadableDetail
from strata.protocol.errors import Reason
from strata.protocol.status import DOMAIN
from strata.shared.convert.json_fields import check_fields
from strata.shared.fair_slots import ANY_NUMBER, FairSlots
from strata.shared.interceptors.auth import AUTHORIZATION_KEY
from strata.shared.json_text import JsonTextError, encodable_text, parse_request_json
from strata.shared.settings import KIB

LARGE_BYTES = 32 * KIB
"""Size from which a body is handled in a thread."""

_THREADS = 2
_PROBLEM_CHARS = 300

ResultT = TypeVar("ResultT")


Metadata = Iterable[tuple[str, str | bytes]]
"""The metadata of a call, with the credentials of the client."""


class LargeBodies:
    """Handles bodies of requests and responses; large ones in threads, one at a time for each key.

    Args:
        channel: Calls the gateway, which checks keys.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._admin: Any = admin_service_pb2_grpc.AdminServiceStub(channel)
        # Nothing is refused here: the calls that follow are limited.
        self._slots = FairSlots(_THREADS, "large bodies", queue=ANY_NUMBER)

    async def handle(
        self, handle: Callable[[bytes], ResultT], body: bytes, metadata: Metadata
    ) -> ResultT:
        """Returns `handle(body)`."""
        if len(body) < LARGE_BYTES:
            return handle(body)
        # Only the key is known here: the project would need a further call. Bodies sent with the
        # same key wait for each other, but not for bodies sent with other keys.
        async with self._slots.slot(_credentials(metadata)):
            return await asyncio.to_thread(handle, body)

    async def check_key(self, body: bytes, metadata: Metadata) -> None:
        """Checks the key of a request with a large body, before time is spent on it.

        Raises:
            grpc.aio.AioRpcError: The key is not valid.
        """
        if len(body) >= LARGE_BYTES:
            await self._admin.WhoAmI(admin_service_pb2.WhoAmIRequest(), metadata=metadata)


def _credentials(metadata: Metadata) -> str:
    values = (value for key, value in metadata if key in (AUTHORIZATION_KEY, API_KEY_HEADER))
    return " ".join(map(str, values))


class JsonMessages:
    """Converts messages from and to JSON.

    An unknown field is refused: it is probably misspelled, and ignoring it would change what the
    call does.

    Args:
        bodies: Handles the large ones.
    """

    def __init__(self, bodies: LargeBodies) -> None:
        self._bodies = bodies

    async def to_binary(self, text: bytes, kind: type[Message], metadata: Metadata) -> bytes:
        """Returns the bytes of the message in a JSON text; an empty text is the empty message.

        Args:
            text: The JSON.
            kind: The class of the message.
            metadata: The credentials of the client.

        Raises:
            ConnectError: It is not JSON, or not the JSON of the message.
            grpc.aio.AioRpcError: It is large, and the key is not valid.
        """
        await self._bodies.check_key(text, metadata)
        return await self._bodies.handle(lambda body: _parse(body, kind), text, metadata)

    async def to_json(self, data: bytes, kind: type[Message], metadata: Metadata) -> bytes:
        """Returns the JSON of a message for the client with these credentials."""
        return await self._bodies.handle(lambda body: _print(body, kind), data, metadata)


def _parse(text: bytes, kind: type[Message]) -> bytes:
    message = kind()
    try:
        value = parse_request_json(text) if text else {}
        if not isinstance(value, dict):
            raise JsonTextError("it is not a JSON object")
        check_fields(value, kind.DESCRIPTOR)
        json_format.ParseDict(value, message)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise _malformed(kind, str(error)) from error
    return message.SerializeToString()


def _print(data: bytes, kind: type[Message]) -> bytes:
    message = kind.FromString(data)
    return json_format.MessageToJson(message, indent=None, ensure_ascii=False).encode()


def _malformed(kind: type[Message], problem: str) -> ConnectError:
    info = error_details_pb2.ErrorInfo(
        reason=Reason.MALFORMED_MESSAGE.value,
        domain=DOMAIN,
        metadata={"message": kind.DESCRIPTOR.full_name},
    )
    packed = any_pb2.Any()
    packed.Pack(info)
    # The lines after the first list all fields. An unpaired surrogate of the body may be in it.
    problem = encodable_text(problem.partition("\n")[0][:_PROBLEM_CHARS])
    return ConnectError(
        Code.INVALID_ARGUMENT,
        f"The body is not the JSON of a {kind.DESCRIPTOR.name}: {problem}",
        [ReadableDetail(packed)],
    )
