"""Settings of the archival service, prefix ``STRATA_ARCHIVAL_``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from strata.shared.search.reranking.settings import RerankingServiceSettings
from strata.shared.settings import settings_config


class ArchivalSettings(RerankingServiceSettings):
    """Settings of the archival service."""

    model_config = settings_config("archival")

    port: int = Field(default=7604, ge=0, le=65535, description="Port; 0 lets the system choose.")
    file_worker_public_keys: str = Field(
        default="",
        repr=False,
        description="PEM public keys of core memory's worker. Tokens signed with them are accepted"
        " only by the methods that index files. Without any, files are not searchable by meaning.",
    )
    file_worker_public_keys_file: Path | None = Field(
        default=None, description="File to read those keys from instead."
    )

    def worker_keys(self) -> str:
        """Returns the PEM texts of the keys of core memory's worker; empty if there are none."""
        if self.file_worker_public_keys or self.file_worker_public_keys_file is None:
            return self.file_worker_public_keys
        return self.file_worker_public_keys_file.read_text(encoding="ascii")
