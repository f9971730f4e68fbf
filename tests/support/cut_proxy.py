"""A TCP proxy that loses answers and refuses connections, between a service and its peer."""

from __future__ import annotations

from typing import Literal

from tcp_relay import TcpRelay

Mode = Literal["pass", "refuse", "lose"]


class CutProxy(TcpRelay):
    """Forwards connections to an address.

    Args:
        target: ``host:port`` of the peer.

    Attributes:
        mode: "pass" forwards everything; "refuse" closes every connection immediately; "lose"
            forwards requests, drops the answer and then closes the connection.
        after_loss: The mode that is set after an answer was dropped.
        lost: Number of connections whose answer was dropped.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.mode: Mode = "pass"
        self.after_loss: Mode = "pass"
        self.lost = 0

    def admits(self) -> bool:
        """Returns whether a new connection is forwarded: False in mode "refuse"."""
        return self.mode != "refuse"

    def loses(self, data: bytes) -> bool:
        """Returns whether the next answer is dropped."""
        # An answer is longer than the acknowledgements of HTTP/2.
        if self.mode == "lose" and len(data) > 60:
            self.lost += 1
            self.mode = self.after_loss
            return True
        return self.mode == "refuse"
