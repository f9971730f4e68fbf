"""Annotations with ``AgentState``, which has no meaning yet where a tool's source is read.

The class stands behind the source. An annotation that is text is looked up when the function is
called; one that is not is evaluated where it stands, and would end the tool before it began.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

_NAME = "AgentState"


@lru_cache(maxsize=512)
def deferred(source: str) -> str:
    """Returns the source with its annotations of ``AgentState`` as text, each line where it was.

    Args:
        source: Source that a schema was derived from before.
    """
    if _NAME not in source:
        return source
    module = ast.parse(source)
    if _defers_all(module):
        return source
    # As bytes: places in a line are counted in them, and fewer of them end a line.
    lines = source.encode().splitlines(keepends=True)
    # From the end, so that the places before stay what they are.
    found = sorted(_annotations(module), key=lambda each: (each.lineno, each.col_offset))
    for annotation in reversed(found):
        _replace(lines, annotation)
    return b"".join(lines).decode()


def _defers_all(module: ast.Module) -> bool:
    return any(
        isinstance(each, ast.ImportFrom)
        and each.module == "__future__"
        and any(alias.name == "annotations" for alias in each.names)
        for each in module.body
    )


def _annotations(module: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(module):
        annotation = (
            node.annotation
            if isinstance(node, ast.arg)
            else node.returns
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            else None
        )
        if annotation is not None and any(
            isinstance(each, ast.Name) and each.id == _NAME for each in ast.walk(annotation)
        ):
            yield annotation


def _replace(lines: list[bytes], annotation: ast.expr) -> None:
    first, last = annotation.lineno - 1, (annotation.end_lineno or annotation.lineno) - 1
    start, end = annotation.col_offset, annotation.end_col_offset or 0
    text = repr(ast.unparse(annotation)).encode()
    # The brackets around it are not part of it, so that lines may end within them.
    breaks = [b"\n"] * (last - first)
    whole = lines[first][:start] + text + b"".join(breaks) + lines[last][end:]
    lines[first : last + 1] = whole.splitlines(keepends=True)
