"""Settings of the core memory service, prefix ``STRATA_CORE_MEMORY_``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from strata.shared.settings import MIB, ServiceSettings, settings_config


class CoreMemorySettings(ServiceSettings):
    """Settings of the core memory service."""

    model_config = settings_config("core_memory")

    port: int = Field(default=7602, ge=0, le=65535, description="Port; 0 lets the system choose.")
    worker_token_key: SecretStr = Field(
        default=SecretStr(""),
        description="PEM private key that signs the worker's calls to the archival service; "
        "without it files are not searchable by meaning.",
    )
    worker_token_key_file: Path | None = Field(
        default=None, description="File to read that key from instead."
    )
    max_file_bytes: int = Field(
        default=50 * MIB, gt=0, description="Largest file that can be uploaded, bytes."
    )
    file_readers: int = Field(default=2, gt=0, description="Files that are read concurrently.")
    file_reading_timeout_s: float = Field(
        default=300.0, gt=0, description="Time that converting one file may take, seconds."
    )
    file_reading_memory_bytes: int = Field(
        default=1024 * MIB,
        ge=512 * MIB,
        description="Address space of the process that converts a file.",
    )

    def worker_key(self) -> str:
        """Returns the key that the worker signs with; empty without one."""
        if self.worker_token_key_file is not None:
            return self.worker_token_key_file.read_text(encoding="ascii")
        return self.worker_token_key.get_secret_value()
