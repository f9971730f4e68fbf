"""Documents that are cited are in the repository.

RFCs, W3C recommendations and issues of other projects (``owner/name#1``) may be cited too. Patterns
have character classes, and examples are put together, so that this file does not match.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from unit.house.repository import REPOSITORY, sections_of, texts

_NOT_OURS = ("LICENSE", "requirements.lock")
_DATA = ("shared/strata/shared/search/embedding/data/", "tests/data/", "tests/node/")
_GENERATED = "clients/python/strata/api/"
_VENDORED = "gateway/strata/gateway/console/static/vendor/"

OUTSIDE_DOCUMENTS = (
    ("lueprin", r"\b[Bb]lueprin[t]\b"),
    ("bserved", r"\b[Oo]bserved(?:\.m[d]| (?:\xa7|\d))"),
    ("as observe", r"\bas observe[d]\b"),
    (".m", r"(?<![\w-])(?:measured|field)\.m[d]\b"),
    ("architecture", r"\barchitecture,? (?:\xa7|invariant)"),
    ("ppendix ", r"\b[Aa]ppendix [A-Z\d]\b"),
    ("he s", r"\b[Tt]he [s]pec(?:ification)?\b(?! of [A-Z])"),
    ("he ol", r"\b[Tt]he ol[d] (?:server|implementation|system)\b"),
    ("#", r"(?<!\w)(?<!PKCS )[#]\d{1,5}\b"),
    ("ssue ", r"\b[Ii]ssue [\d]+\b"),
)
"""Ways to cite documents that are not in the repository, and issues without their project.

Each pattern stands behind a part of all texts that it matches, which is looked for first: that is
much faster in texts without it.
"""

_SECTION = re.compile(r"(RFC \d+|W3C [A-Z][\w ]*?)? ?\xa7")
_MARK = re.compile(r"(?<![\w/`\"'.+-])[A-Z]\d{1,2}(?![\w-])")
# Loops of agents, sets of control characters, markers of JPEG files, names of models and engines.
_NO_MARKS = {"V2", "V3", "V8", "C0", "C1", "C4", "C8", "E5"}
_FILE = re.compile(r"(?<![\w/.-])((?:[\w.-]+/)*[\w.-]+\.md)(?:#([\w-]+))?")


@cache
def read() -> dict[str, str]:
    """Returns the texts of the repository by file name."""
    return {
        name: text
        for name, text in texts().items()
        if name not in _NOT_OURS and not name.startswith((*_DATA, _GENERATED, _VENDORED))
    }


def unwrapped(text: str) -> str:
    """Returns a text in one line, without the marks of comments at the beginning of its lines."""
    return re.sub(r"\n[ \t]*(?:#:?|//+|--|\*)?[ \t]*", " ", text)


@cache
def prose(name: str) -> str:
    """Returns the comments and docstrings of code, and all of a document but its code."""
    text = read()[name]
    if name.endswith(".py"):
        return unwrapped("\n".join(_python_prose(text)))
    if name.endswith(".proto"):
        return unwrapped("\n".join(re.findall(r"//(.*)", text)))
    if name.endswith(".md"):
        outside = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
        return unwrapped(re.sub(r"`[^`\n]*`", "", outside))
    return unwrapped("\n".join(re.findall(r"^\s*#(.*)", text, re.MULTILINE)))


def _python_prose(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(ast.Constant(str() as docstring)):
                yield docstring


def citations_of_outside_documents(text: str) -> list[str]:
    """Returns the citations of documents that are not in the repository."""
    line = unwrapped(text)
    citations = [
        match[0]
        for part, pattern in OUTSIDE_DOCUMENTS
        if part in line
        for match in re.finditer(pattern, line)
    ]
    sections = _SECTION.finditer(line) if "\xa7" in line else ()
    return citations + [match[0] for match in sections if match[1] is None]


def marks(text: str) -> list[str]:
    """Returns texts that look like the number of a finding or requirement: a capital and digits."""
    return [mark for mark in _MARK.findall(text) if mark not in _NO_MARKS]


def missing_headings(text: str) -> list[str]:
    """Returns the documents and headings of ``docs`` that a text cites and that do not exist."""
    if "docs/" not in text:
        return []
    return [
        match[0]
        for match in _FILE.finditer(text)
        if match[1].startswith("docs/") and not _leads_somewhere(REPOSITORY / match[1], match[2])
    ]


def _leads_somewhere(path: Path, anchor: str | None) -> bool:
    return path.is_file() and (not anchor or anchor in sections_of(path))


def test_no_file_cites_a_document_that_is_not_in_the_repository() -> None:
    citations = {name: citations_of_outside_documents(text) for name, text in read().items()}
    assert {name: cited for name, cited in citations.items() if cited} == {}


def test_no_comment_cites_an_entry_of_an_external_list() -> None:
    citations = {
        name: marks(prose(name))
        for name, text in read().items()
        # Few files have any, and to tokenize all of them takes seconds.
        if name.endswith((".py", ".proto", ".md")) and marks(text)
    }
    assert {name: cited for name, cited in citations.items() if cited} == {}


def test_files_that_code_cites_exist() -> None:
    known = {Path(name).name for name in texts() if name.endswith(".md")}
    for name, text in read().items():
        if name.endswith(".md") or ".md" not in text:
            continue
        for path, _ in _FILE.findall(prose(name)):
            assert Path(path).name in known, f"{name}: {path}"


def test_headings_that_tests_cite_exist() -> None:
    # Paths in their data are not citations. `test_documentation` looks at all other files.
    citations = {
        name: missing_headings(prose(name))
        for name, text in read().items()
        if name.startswith("tests/") and missing_headings(unwrapped(text))
    }
    assert {name: cited for name, cited in citations.items() if cited} == {}


def test_code_cites_the_wire_format_by_heading() -> None:
    cited = [
        (name, anchor)
        for name, text in read().items()
        if name.startswith(("shared/", "services/", "gateway/", "protos/"))
        and "docs/wire-format.md" in text
        for path, anchor in _FILE.findall(text)
        if path == "docs/wire-format.md"
    ]
    assert len(cited) > 10
    assert [name for name, anchor in cited if not anchor] == []


@pytest.mark.parametrize(
    "text",
    [
        "The layout of the blue" + "print.",
        "# As in the " + "blue" + "print,\n# chapter 3",
        "(obser" + "ved \xa79)",
        "(observed" + "\n# \xa79)",
        "See obser" + "ved.md.",
        "kept (archi" + "tecture \xa75)",
        "Names of the" + " specification in brackets.",
        "Not of the" + "\n    // specification.",
        "as the old" + " server did",
        "measured" + ".md, B3",
        "\xa73.2 says so",
        "fixes " + "#" + "12",
        "see issue " + "12",
    ],
)
def test_citations_of_outside_documents_are_detected(text: str) -> None:
    assert citations_of_outside_documents(text)


@pytest.mark.parametrize(
    "text",
    [
        "UUID version 7 (RFC 9562 \xa75.7)",
        "W3C Trace Context \xa73.2: version",
        "threads again (grpc/grpc" + "#" + "43055)",
        "by the specification of Standard Webhooks",
        "the observed call, and what was observed",
        "MON" + "#" + "1 is the first Monday",
        "docs/wire-format.md#heartbeats",
    ],
)
def test_other_texts_are_not_detected_as_citations(text: str) -> None:
    assert citations_of_outside_documents(text) == []


@pytest.mark.parametrize("text", ["as D" + "33 demands", "(B" + "7)", "R" + "12: the window"])
def test_marks_of_lists_are_detected(text: str) -> None:
    assert marks(text)


@pytest.mark.parametrize("text", ["The V2 loop", "all-MiniLM-L6-v2", "C0 and C1", "S256", "/X0"])
def test_other_names_are_not_detected_as_marks(text: str) -> None:
    assert marks(text) == []


@pytest.mark.parametrize("cited", ["docs/nowhere.md", "docs/wire-format.md#no-heading"])
def test_citations_of_missing_headings_are_detected(cited: str) -> None:
    assert missing_headings(f"as {cited} says") == [cited]
    assert missing_headings("as docs/wire-format.md#heartbeats says") == []
