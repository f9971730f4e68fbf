"""The addresses at which this process listens."""

from __future__ import annotations

import psutil


def listening_addresses(port: int | None) -> set[str]:
    """Returns the IP addresses on which this process listens at a TCP port.

    A connection attempt is not enough: another process may listen on the same port.
    """
    return {
        connection.laddr.ip
        for connection in psutil.Process().net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
