"""Settings of the archival service, prefix ``STRATA_ARCHIVAL_``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from strata.shared.search.reranking.factory import RerankingServiceSettings
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
    pool_size: int = Field(default=10, gt=0, description="Database connections at most.")
    passage_token_limit: int = Field(
        default=8192,
        gt=0,
        description=(
            "Most tokens of one passage or chunk of a file, and 16 bytes for each of them. A word "
            "that the embedding model does not know has a token for every three bytes."
        ),
    )
    index_batch: int = Field(default=128, gt=0, description="Passages indexed per step.")
    index_file_batch: int = Field(
        default=8, gt=0, description="Chunks of files indexed per step, between passages."
    )
    request_days: int = Field(
        default=7, gt=0, description="Days for which a repeated request_id is recognised."
    )
    expiry_batch: int = Field(
        default=500, gt=0, description="Expired passages destroyed in one transaction."
    )
    expiry_poll_s: float = Field(
        default=30.0, gt=0, description="Seconds between two searches for expired passages."
    )

    def worker_keys(self) -> str:
        """Returns the PEM texts of the keys of core memory's worker; empty if there are none."""
        if self.file_worker_public_keys or self.file_worker_public_keys_file is None:
            return self.file_worker_public_keys
        return self.file_worker_public_keys_file.read_text(encoding="ascii")
