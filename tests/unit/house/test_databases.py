"""How services open their databases."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from unit.house.repository import REPOSITORY


def openings() -> Iterator[object]:
    """Every place in the product that opens a pool."""
    for root in ("services", "gateway", "shared"):
        for path in sorted((REPOSITORY / root / "strata").rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id == "Database"
                ):
                    yield pytest.param(node, id=f"{path.parent.name}-{path.stem}-{node.lineno}")


@pytest.mark.parametrize("opening", list(openings()))
def test_every_pool_can_stand_behind_a_pooler(opening: ast.Call) -> None:
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in opening.keywords}
    assert keywords["prepared_statements"] == "settings.prepared_statements"


def test_services_open_their_pools_in_one_place() -> None:
    """`strata.shared.db.opening`; the bootstrap of a database opens its own."""
    assert len(list(openings())) == 2
