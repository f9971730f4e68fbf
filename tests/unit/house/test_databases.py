"""How services open their databases."""

from __future__ import annotations

import ast
import re

from unit.house.repository import modules, name_of, trees


def openings() -> dict[str, ast.Call]:
    """Returns every place in the product that opens a pool, by file and line."""
    folders = ("services/", "gateway/", "shared/")
    servers = (path for path in modules() if name_of(path).startswith(folders))
    return {
        f"{name_of(path)}:{node.lineno}": node
        for path, tree in trees(servers, re.compile(r"\bDatabase\b"))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Database"
    }


def test_every_pool_passes_the_setting_for_prepared_statements() -> None:
    settings = {
        place: [
            ast.unparse(keyword.value)
            for keyword in opening.keywords
            if keyword.arg == "prepared_statements"
        ]
        for place, opening in openings().items()
    }
    wrong = {k: v for k, v in settings.items() if v != ["settings.prepared_statements"]}
    assert wrong == {}
