"""Settings of a service that searches: the vector index and the embedding models."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from strata.shared.search.embedding.base import ENGLISH_MODEL, MULTILINGUAL_MODEL
from strata.shared.search.fusion import FLOOR
from strata.shared.settings import ServiceSettings


class EmbeddingEndpoint(BaseModel):
    """An embedding model behind an OpenAI-compatible endpoint."""

    name: str = Field(
        min_length=1,
        max_length=120,
        description="Id of the model in Strata; stored with every vector.",
    )
    model: str = Field(default="", description="Its name at the endpoint; unset means the same.")
    dim: int = Field(gt=0, le=65_536, description="Dimension of its vectors.")
    base_url: str | None = Field(
        default=None, description="Address of the endpoint; unset means OpenAI's own."
    )
    api_key: str = Field(default="", repr=False, description="Key of the endpoint.")
    max_tokens: int = Field(default=8192, gt=0, description="Maximum number of tokens of one text.")
    send_dimensions: bool = Field(
        default=False, description="Request vectors of `dim`, for models that can shorten them."
    )
    query_prefix: str = Field(default="", description='Put before queries (E5: "query: ").')
    document_prefix: str = Field(
        default="", description='Put before texts that are searched (E5: "passage: ").'
    )
    unrelated_cosine: float = Field(
        default=0.0, ge=-1, lt=1, description="Cosine of unrelated texts (E5: 0.7)."
    )


class SearchingServiceSettings(ServiceSettings):
    """Fields of the services that search by meaning.

    Services of one process whose values are equal share one model and one client.
    """

    qdrant_url: str = Field(
        default="http://127.0.0.1:6334",
        description="gRPC address of Qdrant or of the embedded engine.",
    )
    qdrant_api_key: str = Field(default="", repr=False, description="Its API key.")
    qdrant_replication_factor: int = Field(
        default=1, gt=0, description="Copies of each shard of a new collection."
    )
    embedding_provider: Literal["multilingual", "minilm", "openai"] = Field(
        default="multilingual",
        description=(
            "The model of new indexes: the multilingual one or the English one on this machine, or "
            "an OpenAI-compatible endpoint."
        ),
    )
    embedding_model_path: Path | None = Field(
        default=None, description="File of the English model; unset means the packaged one."
    )
    embedding_base_url: str | None = Field(
        default=None, description="Address of the endpoint; unset means OpenAI's own."
    )
    embedding_api_key: str = Field(default="", repr=False, description="Key of the endpoint.")
    embedding_model: str = Field(
        default="text-embedding-3-small", description="Model at the endpoint."
    )
    embedding_dim: int = Field(default=1536, gt=0, description="Dimension of its vectors.")
    embedding_models: tuple[EmbeddingEndpoint, ...] = Field(
        default=(),
        description="Models beside the default one, which archives and reindexing can name.",
    )
    embedding_timeout_s: float = Field(
        default=30.0, gt=0, description="Longest wait for one answer of an endpoint, seconds."
    )
    search_floor: float = Field(
        default=FLOOR,
        ge=0,
        le=2,
        description=(
            "Minimum score of a search result: similarity of meaning (0 to 1) plus match of words "
            "(0 to 1). Queries of up to three words that are not questions need 60 % of it. Raise "
            "it if searches return unrelated texts, lower it if they miss related ones; 0 returns "
            "the nearest texts, related or not."
        ),
    )
    reindex_grace_s: float = Field(
        default=86_400.0,
        ge=0,
        description="Seconds for which a replaced index is kept up to date for a rollback.",
    )
    reindex_by_key: bool = Field(
        default=True,
        description=(
            "Allow organization keys with the scope installation.admin to rebuild an index that "
            "all projects of a partition share. Rebuilding the index of one archive is not "
            "affected."
        ),
    )

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [
            self.default_embedding_model,
            *(embedding_model.name for embedding_model in self.embedding_models),
        ]
        names += {MULTILINGUAL_MODEL, ENGLISH_MODEL} - {self.default_embedding_model}
        if len(set(names)) < len(names):
            raise ValueError("two embedding models have the same name")
        return self

    @property
    def default_embedding_model(self) -> str:
        """Id of the default model."""
        local = {"multilingual": MULTILINGUAL_MODEL, "minilm": ENGLISH_MODEL}
        return local.get(self.embedding_provider, self.embedding_model)
