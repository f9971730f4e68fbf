"""Reads the folder of an exported cross-encoder: weights, vocabulary and configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata.protocol.errors import FailedPreconditionError, Reason

MODEL_FILES = ("model.onnx", "onnx/model.onnx")
# Markers that every BERT vocabulary has.
_MARKERS = ("[UNK]", "[CLS]", "[SEP]")
# The limit of BERT models; models that read more are too slow for a search.
_MOST_TOKENS = 512
_FEWEST_TOKENS = 8
# Rules of our tokenizer; a model that was trained with others would need other tokens.
_CONFIG_RULES = {"do_lower_case": True, "tokenize_chinese_chars": True}
_NORMALIZER_RULES = {
    "type": "BertNormalizer",
    "lowercase": True,
    "handle_chinese_chars": True,
    "clean_text": True,
}


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The contents of a model folder.

    Attributes:
        weights: The file of the model.
        vocabulary: Tokens by id.
        max_tokens: Maximum number of tokens of a query and a text together, including markers.
        sha256: Digest of the weights, in hexadecimal.
    """

    weights: Path
    vocabulary: Sequence[str]
    max_tokens: int
    sha256: str


def refused(folder: Path, why: str) -> FailedPreconditionError:
    """Returns the error for a folder that cannot be used."""
    return FailedPreconditionError(
        f"the reranker {folder} cannot be used: {why}",
        reason=Reason.MODEL_NOT_CONFIGURED,
        metadata={"path": str(folder)},
    )


def read_folder(folder: Path, sha256: str = "") -> ModelFolder:
    """Reads the vocabulary and the configuration, and checks the digest of the weights.

    Args:
        folder: Contains ``model.onnx`` (or ``onnx/model.onnx``), ``vocab.txt`` or
            ``tokenizer.json``, and optional configuration files.
        sha256: Digest that the weights must have; empty accepts any.

    Raises:
        FailedPreconditionError: ``MODEL_NOT_CONFIGURED``: a file is missing or cannot be read,
            the digest differs, or the model needs another tokenizer.
    """
    if not folder.is_dir():
        raise refused(folder, "there is no such folder")
    weights = next((path for name in MODEL_FILES if (path := folder / name).is_file()), None)
    if weights is None:
        raise refused(folder, f"there is no {MODEL_FILES[0]} in it")
    tokenizer, settings = _json(folder, "tokenizer.json"), _json(folder, "tokenizer_config.json")
    _check_rules(folder, tokenizer, settings)
    digest = _digest(folder, weights)
    if sha256 and digest != sha256.lower():
        raise refused(folder, f"sha256 of {weights.name} is {digest}, expected {sha256}")
    limits = (
        settings.get("model_max_length"),
        _json(folder, "config.json").get("max_position_embeddings"),
        _MOST_TOKENS,
    )
    max_tokens = int(min(limit for limit in limits if isinstance(limit, int | float)))
    if max_tokens < _FEWEST_TOKENS:
        raise refused(folder, f"it reads {max_tokens} tokens, which are too few")
    return ModelFolder(weights, _vocabulary(folder, tokenizer), max_tokens, digest)


def _json(folder: Path, name: str) -> Mapping[str, Any]:
    path = folder / name
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise refused(folder, f"{name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise refused(folder, f"{name} is not an object")
    return value


def _check_rules(folder: Path, tokenizer: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    kind = (tokenizer.get("model") or {}).get("type", "WordPiece")
    if kind != "WordPiece":
        raise refused(folder, f"its tokenizer is {kind}; only WordPiece (as in BERT) is supported")
    normalizer = tokenizer.get("normalizer") or {}
    for rules, values in ((_CONFIG_RULES, settings), (_NORMALIZER_RULES, normalizer)):
        for name, value in rules.items():
            if values.get(name, value) != value:
                raise refused(
                    folder, f"its tokenizer has {name} = {values[name]!r}, and only {value!r} works"
                )
    if False in (settings.get("strip_accents"), normalizer.get("strip_accents")):
        raise refused(folder, "its tokenizer keeps accents, and only one that drops them works")


def _vocabulary(folder: Path, tokenizer: Mapping[str, Any]) -> list[str]:
    path = folder / "vocab.txt"
    if path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise refused(folder, f"vocab.txt cannot be read: {error}") from error
        # Not `splitlines`, because a token may itself be a line separator.
        tokens = text.removesuffix("\n").split("\n")
    else:
        ids: Mapping[str, int] = (tokenizer.get("model") or {}).get("vocab") or {}
        if not ids:
            raise refused(folder, "there is no vocab.txt and no vocabulary in tokenizer.json")
        tokens = sorted(ids, key=lambda token: ids[token])
        if [ids[token] for token in tokens] != list(range(len(tokens))):
            raise refused(folder, "the vocabulary in tokenizer.json has gaps")
    if missing := [marker for marker in _MARKERS if marker not in tokens]:
        raise refused(folder, f"its vocabulary has no {missing[0]}")
    return tokens


def _digest(folder: Path, weights: Path) -> str:
    try:
        with weights.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise refused(folder, f"{weights.name} cannot be read: {error.strerror}") from error
