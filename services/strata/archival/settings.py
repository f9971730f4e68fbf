"""Settings of the archival room, prefix ``STRATA_ARCHIVAL_``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from strata.shared.settings import RoomSettings, room_config


class ArchivalSettings(RoomSettings):
    """What the archival room can be told from outside."""

    model_config = room_config("archival")

    port: int = Field(default=7604, ge=0, le=65535, description="Port; 0 lets the system choose.")
    pool_size: int = Field(default=10, gt=0, description="Database connections at most.")
    qdrant_url: str = Field(
        default="http://127.0.0.1:6334", description="gRPC address of Qdrant or of its stand-in."
    )
    qdrant_api_key: str = Field(default="", repr=False, description="Its API key.")
    qdrant_replication_factor: int = Field(
        default=1, gt=0, description="Copies of each shard of a new collection."
    )
    embedding_provider: Literal["minilm", "openai"] = Field(
        default="minilm", description="The local model, or an OpenAI-compatible endpoint."
    )
    embedding_model_path: Path | None = Field(
        default=None, description="File of the local model; unset means the packaged one."
    )
    embedding_base_url: str | None = Field(
        default=None, description="Address of the endpoint; unset means OpenAI's own."
    )
    embedding_api_key: str = Field(default="", repr=False, description="Key of the endpoint.")
    embedding_model: str = Field(
        default="text-embedding-3-small", description="Model at the endpoint."
    )
    embedding_dim: int = Field(default=1536, gt=0, description="Dimension of its vectors.")
    passage_token_limit: int = Field(default=8192, gt=0, description="Most tokens of one passage.")
    index_batch: int = Field(default=128, gt=0, description="Passages indexed at a time.")
    index_file_batch: int = Field(
        default=8, gt=0, description="Chunks of files indexed at a time, between passages."
    )
    index_poll_s: float = Field(
        default=1.0, gt=0, description="Pause between looks for passages to index, seconds."
    )
    request_days: int = Field(
        default=7, gt=0, description="Days for which a repeated request_id is recognised."
    )
