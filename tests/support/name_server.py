"""A DNS server with the IPv4 addresses of one name."""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from typing import Any

_A, _IN = 1, 1
_AUTHORITATIVE_ANSWER, _SERVER_FAILURE = 0x8580, 0x8582


class NameServer(asyncio.DatagramProtocol):
    """Answers DNS queries over UDP, with the same addresses for every name.

    Attributes:
        addresses: The addresses in the answers.
        questions: Number of queries for IPv4 addresses.
        fails: Whether it answers every query with SERVFAIL.
    """

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.questions = 0
        self.fails = False
        self._transport: Any = None

    async def start(self) -> None:
        """Listens on a free port of loopback."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", 0)
        )

    @property
    def address(self) -> str:
        """Its address, such as ``127.0.0.1:5300``."""
        host, port = self._transport.get_extra_info("sockname")
        return f"{host}:{port}"

    def stop(self) -> None:
        """Stops listening."""
        self._transport.close()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Answers a query."""
        end = 12
        while data[end]:
            end += data[end] + 1
        question = data[12 : end + 5]
        (kind,) = struct.unpack("!H", data[end + 1 : end + 3])
        self.questions += kind == _A
        addresses = self.addresses if kind == _A and not self.fails else []
        flags = _SERVER_FAILURE if self.fails else _AUTHORITATIVE_ANSWER
        answer = data[:2] + struct.pack("!HHHHH", flags, 1, len(addresses), 0, 0) + question
        for address in addresses:
            packed = ipaddress.IPv4Address(address).packed
            answer += struct.pack("!HHHIH", 0xC00C, _A, _IN, 0, len(packed)) + packed
        self._transport.sendto(answer, addr)
