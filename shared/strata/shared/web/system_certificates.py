"""The certificates of the system, with which clients verify servers."""

from __future__ import annotations

import ssl
from functools import cache

import httpx2


@cache
def system_ssl_context() -> ssl.SSLContext:
    """Returns the context that verifies servers with the certificates of the system.

    The clients of a process share it, because reading the certificates takes 20 ms of CPU time.
    ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` are read at the first use.
    """
    return httpx2.create_ssl_context()
