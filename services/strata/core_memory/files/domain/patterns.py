"""Patterns that match lines of files, and names of files.

They are regular expressions of RE2, which takes time linear in the length of the text for
every pattern (docs/decisions/0052). Lines match separately, and case is ignored, as is whether
letters are composed: PDFs and names of files from a Mac have letters and accents apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import re2  # type: ignore[import-untyped]

from strata.core_memory.files.domain.files import wrong_field
from strata.shared.search.folded_text import normalise

_MAX_PROGRAM = 20_000
_MAX_MEMORY = 8 * 1024 * 1024
# Bytes that are searched between checks of the time. The slowest patterns that are allowed
# take some seconds for this much.
_PIECE_BYTES = 16 * 1024
_GLOB_PARTS = re.compile(r"\[!?[^\[\]]+\]|\*|\?|.", re.DOTALL)


class LinePattern:
    """A pattern that is matched against single lines.

    Raises:
        InvalidArgumentError: It is not a valid RE2 expression.
    """

    def __init__(self, pattern: str) -> None:
        # (?m): ^ and $ match at line ends, so that many lines can be searched in one call.
        pattern = normalise(pattern)
        self._multiline = _compiled(f"(?m){pattern}", pattern, "pattern", "regex")
        self._line = _compiled(pattern, pattern, "pattern", "regex")
        self._by_line = _depends_on_ends(pattern)

    def lines(self, text: str, *, limit: int, expired: Callable[[], bool]) -> list[int]:
        """Returns the matching lines of a text, from 0.

        Args:
            text: Lines with line feeds between them.
            limit: Maximum of lines.
            expired: Polled during the search; True ends it.
        """
        matches: list[int] = []
        data = normalise(text).encode()
        number = 0
        for start, end in _pieces(data):
            if expired() or len(matches) >= limit:
                break
            search = self._each_line if self._by_line else self._many_lines
            matches += [number + line for line in search(data, start, end, limit - len(matches))]
            number += data.count(b"\n", start, end) + 1
        return matches

    def span(self, line: str) -> tuple[int, int]:
        """Returns the start and end of the first match in a line; (0, 0) without a match.

        They are for the line with composed letters, a few characters less in a long line.
        """
        match = self._line.search(normalise(line))
        return match.span() if match is not None else (0, 0)

    def _each_line(self, data: bytes, start: int, end: int, limit: int) -> Iterator[int]:
        lines = data[start:end].split(b"\n")
        matching = (number for number, line in enumerate(lines) if self._line.search(line))
        yield from (number for number, _ in zip(matching, range(limit), strict=False))

    def _many_lines(self, data: bytes, start: int, end: int, limit: int) -> Iterator[int]:
        number, counted = 0, start
        while limit > 0:
            match = self._multiline.search(data, start, end)
            if match is None:
                return
            at = match.start()
            number += data.count(b"\n", counted, at)
            yield number
            limit -= 1
            counted = data.find(b"\n", at, end)
            if counted < 0:
                return
            start = counted + 1


def name_filter(include: str) -> Callable[[str], bool]:
    """Returns a predicate on names ``FOLDER/FILE`` that selects the files to search.

    A glob such as ``*.py`` or ``docs/*.md`` must match the whole ``FOLDER/FILE`` or the file's
    own name. A regular expression may match anywhere in ``FOLDER/FILE``. A literal part of the
    name always matches.

    Raises:
        InvalidArgumentError: It is neither a glob nor a valid RE2 expression.
    """
    if not include:
        return lambda _: True
    include = normalise(include)
    literal = include.casefold()
    if re.search(r"[\\^$|(){}+]|\.\*", include) is None:
        glob = _compiled(_glob_expression(include), include, "include", "include")

        def matches_glob(name: str) -> bool:
            name = normalise(name)
            return (
                literal in name.casefold()
                or glob.fullmatch(name) is not None
                or glob.fullmatch(name.rpartition("/")[2]) is not None
            )

        return matches_glob
    expression = _compiled(include, include, "include", "include")

    def matches(name: str) -> bool:
        name = normalise(name)
        return literal in name.casefold() or expression.search(name) is not None

    return matches


def _pieces(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields start and end of pieces of whole lines; line feeds between pieces are skipped."""
    start = 0
    while True:
        end = data.find(b"\n", start + _PIECE_BYTES)
        if end < 0:
            yield start, len(data)
            return
        yield start, end
        start = end + 1


def _depends_on_ends(pattern: str) -> bool:
    # These match at the end of the text, not of the line. A false positive costs only time.
    return any(mark in pattern for mark in (r"\A", r"\z", r"\C")) or bool(
        re.search(r"\(\?[a-zA-Z]*-[a-zA-Z]*m", pattern)
    )


def _glob_expression(glob: str) -> str:
    return "".join(_glob_part(part) for part in _GLOB_PARTS.findall(glob))


def _glob_part(part: str) -> str:
    if len(part) > 1:
        inner = part[1:-1].replace("\\", "\\\\")
        return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
    escaped: str = {"*": ".*", "?": "."}.get(part) or re2.escape(part)
    return escaped


def _compiled(expression: str, original: str, field_name: str, kind: str) -> Any:
    options = re2.Options()
    options.case_sensitive = False
    options.never_nl = True
    options.never_capture = True
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    try:
        compiled = re2.compile(expression, options)
        # The library caches the last 128 patterns with their automata, up to 1 GiB.
        re2.purge()
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        detail = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise wrong_field(
            field_name, f"Invalid {kind} pattern: {_explained(detail, original)}"
        ) from None
    except UnicodeEncodeError:
        raise wrong_field(field_name, f"Invalid {kind} pattern: it is not valid text") from None
    if compiled.programsize > _MAX_PROGRAM:
        raise wrong_field(
            field_name, f"Invalid {kind} pattern: it is too complex; repeat less or shorten it"
        )
    return compiled


def _explained(detail: str, original: str) -> str:
    """Replaces terse RE2 errors by explanations for the model."""
    detail = detail.replace("(?m)", "")
    if re.search(r"invalid perl operator: \(\?<?[=!]", detail):
        return (
            "lookahead and lookbehind such as (?=...) and (?<!...) are not supported; "
            "search for the text itself and look at the lines around it"
        )
    if re.search(r"invalid escape sequence: \\[1-9]", detail) or "(?P=" in original:
        return "backreferences such as \\1 are not supported; write out what is to be repeated"
    if "invalid repetition size" in detail:
        return "repetitions, nested ones multiplied, can be at most 1000"
    if "pattern too large" in detail:
        return "it is too complex; repeat less or shorten it"
    return detail
