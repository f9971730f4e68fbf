"""Archival as a process of its own."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from callers import TokenKeys
from child_processes import running_service, service_settings
from strata.standalone.vectors import EmbeddedVectors


def service(
    urls: Any, vectors: EmbeddedVectors, keys: TokenKeys, port: int
) -> AbstractContextManager[int]:
    engine = {"QDRANT_URL": vectors.url, "QDRANT_API_KEY": vectors.api_key}
    settings = {**service_settings(urls, keys.public, port), **engine}
    return running_service("archival", settings)
