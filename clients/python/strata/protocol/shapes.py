"""The four shapes of an RPC as one value, and channels with one code path for all of them.

gRPC has a method, a callable and a class of calls for each combination of one message or a stream
in either direction. Here the combination is a value, `RpcShape`, and a channel implements one
method, `UniformChannel.open_method`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

Serializer = Callable[[Any], bytes]
Deserializer = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class RpcShape:
    """Which sides of an RPC send a stream; a side that does not sends one message."""

    request_streaming: bool
    response_streaming: bool

    @property
    def name(self) -> str:
        """The name in gRPC's interfaces, such as ``unary_stream``."""
        sides = (self.request_streaming, self.response_streaming)
        return "_".join("stream" if streaming else "unary" for streaming in sides)

    @property
    def streaming(self) -> bool:
        """Whether either side streams."""
        return self.request_streaming or self.response_streaming


@dataclass(frozen=True, slots=True)
class ClientMethod:
    """A method that is called through a channel.

    Attributes:
        shape: Which sides stream.
        path: ``/package.Service/Method``.
        request_serializer: None for requests that are bytes.
        response_deserializer: None for responses that stay bytes.
    """

    shape: RpcShape
    path: str
    request_serializer: Serializer | None = None
    response_deserializer: Deserializer | None = None
    _registered_method: bool | None = False

    def open_on(self, channel: grpc.aio.Channel) -> Any:
        """Returns the channel's callable of the method."""
        return getattr(channel, self.shape.name)(
            self.path,
            request_serializer=self.request_serializer,
            response_deserializer=self.response_deserializer,
            _registered_method=self._registered_method,
        )


class UniformChannel(grpc.aio.Channel):
    """A channel that makes the callables of all shapes in one method."""

    @abstractmethod
    def open_method(self, method: ClientMethod) -> Any:
        """Returns the callable of a method.

        It takes the arguments of gRPC's callables: the request (where requests stream: an iterator
        over them, or None to write them), `timeout` in seconds, `metadata`, and options by name.
        """

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Returns the callable of a unary method."""
        return self.open_method(ClientMethod(RpcShape(False, False), method, *args, **kwargs))

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Returns the callable of a method that streams its responses."""
        return self.open_method(ClientMethod(RpcShape(False, True), method, *args, **kwargs))

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Returns the callable of a method that takes a stream of requests."""
        return self.open_method(ClientMethod(RpcShape(True, False), method, *args, **kwargs))

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Returns the callable of a method that streams both ways."""
        return self.open_method(ClientMethod(RpcShape(True, True), method, *args, **kwargs))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()


class WrappedChannel(UniformChannel):
    """A channel that makes its calls through another one.

    Args:
        inner: The channel that transports.
    """

    def __init__(self, inner: grpc.aio.Channel) -> None:
        self._inner = inner

    async def close(self, grace: float | None = None) -> None:
        """Closes the inner channel."""
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns the state of the inner channel."""
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits until the inner channel leaves the state."""
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits until the inner channel is connected."""
        await self._inner.channel_ready()
