"""A memory block as a Markdown file: YAML front matter with its metadata, then its text.

The file ends with one newline that is not part of the text. Everything else behind the
front matter is the text, byte for byte: line ends, blanks and further ``---`` lines too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.arguments import MAX_INT32, MAX_INT64
from strata.shared.number_text import is_whole_number

KEYS = ("label", "description", "limit", "read_only", "revision", "block_id")
"""The keys that the front matter may have, in the order in which they are written."""

FIELDS = ("label", "description", "limit", "read_only", "value")
"""The fields that a person may change."""

_FENCE = "---"
_OPENING = re.compile(r"---[ \t]*(\r?\n|\Z)")
_CLOSING = re.compile(r"^---[ \t]*(?:\r?\n|\r?\Z)", re.MULTILINE)
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_BOM = "\ufeff"
# YAML turns them into newlines when it reads a text of several lines.
_OTHER_BREAKS = frozenset("\r\x85\u2028\u2029\ufeff")


class DocumentError(ValueError):
    """A file is not a memory block; the message has the reason and what to do."""


class NoFrontMatterError(DocumentError):
    """A file has no front matter, so it is not a memory block."""


@dataclass(frozen=True, slots=True)
class BlockFile:
    """The content of a file; None for fields that it does not have.

    Attributes:
        label: Title of the block.
        value: Its text.
        description: How it should influence the agent.
        limit: Maximum number of characters.
        read_only: True if agents may not change it.
        revision: The revision that the text was written against; 0 if unknown.
        block_id: The block; empty if the file was not pulled from one.
    """

    label: str
    value: str
    description: str | None = None
    limit: int | None = None
    read_only: bool | None = None
    revision: int = 0
    block_id: str = ""

    def filled(self, other: BlockFile) -> BlockFile:
        """Returns the document with its missing fields taken from another."""
        return replace(
            self,
            description=other.description if self.description is None else self.description,
            limit=other.limit if self.limit is None else self.limit,
            read_only=other.read_only if self.read_only is None else self.read_only,
        )

    def same(self, other: BlockFile) -> bool:
        """Whether all fields that a person may change are equal."""
        return all(getattr(self, name) == getattr(other, name) for name in FIELDS)


def document_of(block: pb.Block) -> BlockFile:
    """Returns a block as a document."""
    return BlockFile(
        label=block.label,
        value=block.value,
        description=block.description,
        limit=block.limit,
        read_only=block.read_only,
        revision=block.revision,
        block_id=block.id,
    )


def document_of_version(version: pb.BlockVersion) -> BlockFile:
    """Returns a version of a block as a document."""
    return BlockFile(
        label=version.label,
        value=version.value,
        description=version.description,
        limit=version.limit,
        read_only=version.read_only,
        revision=version.revision,
        block_id=version.block_id,
    )


def render(document: BlockFile) -> bytes:
    """Returns the file of a document."""
    header = {
        "label": document.label,
        "description": document.description,
        "limit": document.limit,
        "read_only": document.read_only,
        "revision": document.revision or None,
        "block_id": document.block_id or None,
    }
    fields = {name: value for name, value in header.items() if value is not None}
    text = yaml.dump(
        fields, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf")
    )
    return f"{_FENCE}\n{text}{_FENCE}\n{document.value}\n".encode()


def parse(data: bytes) -> BlockFile:
    """Parses a file; the label is empty if the front matter has none.

    Raises:
        NoFrontMatterError: The file does not begin with ``---``.
        DocumentError: The file cannot be parsed.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DocumentError(f"is not UTF-8 text (byte {error.start}).") from error
    header, body = _split(text.removeprefix(_BOM))
    fields = _header(header)
    return BlockFile(
        label=fields.get("label", ""),
        value=body.removesuffix("\n"),
        description=fields.get("description"),
        limit=_number(fields, "limit", most=MAX_INT32),
        read_only=_flag(fields, "read_only"),
        revision=_number(fields, "revision", most=MAX_INT64) or 0,
        block_id=fields.get("block_id", ""),
    )


def _split(text: str) -> tuple[str, str]:
    opening = _OPENING.match(text)
    if opening is None:
        raise NoFrontMatterError(
            f'has no front matter. For a memory block, begin the file with two lines "{_FENCE}".'
        )
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        raise DocumentError(f'has no line "{_FENCE}" that ends the front matter.')
    return text[opening.end() : closing.start()], text[closing.end() :]


def _header(text: str) -> Mapping[str, str]:
    try:
        # Plain strings only: YAML would turn a label "no" into a boolean.
        fields: Any = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - builds no objects
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        # Counted in the file, where the line of the fence comes first.
        position = f" in line {mark.line + 2}" if mark else ""
        problem = getattr(error, "problem", None) or "it contains a character that YAML forbids"
        raise DocumentError(f"has a front matter that is not YAML{position}: {problem}.") from error
    if fields in (None, ""):
        return {}
    if not isinstance(fields, dict):
        raise DocumentError('has a front matter without names: write "label: …" and so on.')
    unknown = [str(name) for name in fields if name not in KEYS]
    if unknown:
        raise DocumentError(
            f"has {', '.join(unknown)} in its front matter, which is unknown. "
            f"Use {', '.join(KEYS)}."
        )
    for name, value in fields.items():
        if not isinstance(value, str):
            raise DocumentError(f"has a list or a table as {name}; a plain value is needed.")
    return fields


def _number(fields: Mapping[str, str], name: str, *, most: int) -> int | None:
    text = fields.get(name, "")
    if not text:
        return None
    if not is_whole_number(text) or len(text) > len(str(most)) or int(text) > most:
        raise DocumentError(f"has {text!r} as {name}; a whole number is needed.")
    return int(text)


def _flag(fields: Mapping[str, str], name: str) -> bool | None:
    text = fields.get(name, "")
    if not text:
        return None
    if text.lower() not in _FLAGS:
        raise DocumentError(f"has {text!r} as {name}; true or false is needed.")
    return _FLAGS[text.lower()]


class _Dumper(yaml.SafeDumper):
    """Writes multi-line texts in block style."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if _OTHER_BREAKS.intersection(text):
        style = '"'
    elif "\n" in text:
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
