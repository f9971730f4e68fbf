"""Reads the certificates of the system once for all HTTP clients of a test process.

Each client that is opened without its own SSL context would read them again, which takes 20 ms of
CPU time, more than many tests take.
"""

from __future__ import annotations

import os
import ssl
from functools import cache
from typing import Any

import httpcore2

_read = httpcore2.default_ssl_context


@cache
def _context(_file: str | None, _folder: str | None, trust_env: bool) -> ssl.SSLContext:
    return _read(_trust_env=trust_env)


def _shared(*, _trust_env: bool = True) -> ssl.SSLContext:
    # Tests may change the variables that name the certificates.
    variables = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    return _context(*variables, _trust_env)


def install() -> None:
    """Makes the clients of this process share one context."""
    library: Any = httpcore2
    library.default_ssl_context = _shared
