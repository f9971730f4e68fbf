"""A DNS server with the IPv4 addresses of one name."""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from typing import Any

_A, _IN = 1, 1
_AUTHORITATIVE_ANSWER, _SERVER_FAILURE = 0x8580, 0x8582


class NameServer(asyncio.DatagramProtocol):
    """Answers over UDP; for any name, since the test has only one.

    Attributes:
        addresses: What it answers.
        questions: How many questions for IPv4 addresses there were.
        fails: Answer that the server has failed.
    """

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.questions = 0
        self.fails = False
        self._transport: Any = None

    async def start(self) -> None:
        """Listens on a free port of this machine."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", 0)
        )

    @property
    def address(self) -> str:
        """Where it listens: ``127.0.0.1:5300``."""
        host, port = self._transport.get_extra_info("sockname")
        return f"{host}:{port}"

    def stop(self) -> None:
        """Stops listening."""
        self._transport.close()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Answers a question."""
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
