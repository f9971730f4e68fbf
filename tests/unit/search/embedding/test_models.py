"""Models by their id, and as the settings name them."""

from __future__ import annotations

import json

import pytest

from strata.archival.settings import ArchivalSettings
from strata.protocol.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    Reason,
    WrongSettingError,
)
from strata.shared.search.embedding import Embedder, EmbeddingModels, ModelInfo
from strata.shared.search.embedding.base import ENGLISH_MODEL, MULTILINGUAL_MODEL


async def test_a_model_is_opened_once_when_it_is_needed() -> None:
    opened: list[str] = []

    async def make() -> Embedder:
        opened.append("b")
        return object()  # type: ignore[return-value]

    models = EmbeddingModels("a", [(ModelInfo("a", 3), make), (ModelInfo("b", 4), make)])
    assert (models.default.id, models.ids, opened) == ("a", ["a", "b"], [])
    assert await models.get("b") is await models.get("b")
    assert opened == ["b"]


async def test_an_unknown_model_is_an_error_that_depends_on_its_source() -> None:
    async def make() -> Embedder:
        raise AssertionError

    models = EmbeddingModels("a", [(ModelInfo("a", 3), make), (ModelInfo("b", 4), make)])
    assert models.known("").id == "a"
    with pytest.raises(InvalidArgumentError, match="there are a, b") as asked:
        models.known("c")
    assert [violation.field for violation in asked.value.violations] == ["embedding_model"]
    with pytest.raises(FailedPreconditionError) as stored:
        await models.get("c")
    assert stored.value.reason is Reason.MODEL_NOT_CONFIGURED


def test_models_are_named_by_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    named = [{"name": "e5", "dim": 384, "query_prefix": "query: ", "unrelated_cosine": 0.7}]
    monkeypatch.setenv("STRATA_ARCHIVAL_EMBEDDING_MODELS", json.dumps(named))
    settings = ArchivalSettings()
    assert settings.default_embedding_model == MULTILINGUAL_MODEL
    [model] = settings.embedding_models
    assert (model.name, model.dim, model.unrelated_cosine) == ("e5", 384, 0.7)


@pytest.mark.parametrize(
    ("provider", "names"),
    [
        ("multilingual", ["x", "x"]),
        ("multilingual", [MULTILINGUAL_MODEL]),
        ("multilingual", [ENGLISH_MODEL]),
        ("minilm", [MULTILINGUAL_MODEL]),
        ("openai", ["text-embedding-3-small"]),
    ],
)
def test_two_models_of_one_name_are_refused(provider: str, names: list[str]) -> None:
    models = [{"name": name, "dim": 3} for name in names]
    with pytest.raises(WrongSettingError, match="two embedding models have the same name"):
        ArchivalSettings(embedding_provider=provider, embedding_models=models)
