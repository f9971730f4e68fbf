"""The drawing of imports in the architecture is that of the import rules and of the code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict

from unit.house.repository import REPOSITORY, sources

_PAGE = REPOSITORY / "docs" / "architecture.md"


def drawn_arrows() -> dict[str, set[str]]:
    """Returns the targets of the arrows of each node."""
    text = _PAGE.read_text("utf-8").partition("## What imports what")[2].partition("## ")[0]
    arrows: dict[str, set[str]] = defaultdict(set)
    for source, targets in re.findall(r"^    (\w+)\S*(?:\[.*\])? --> (.+)$", text, re.MULTILINE):
        arrows[source] |= set(re.split(r" & ", targets.strip()))
    return arrows


def allowed() -> dict[str, set[str]]:
    """Returns what each node may import: the targets of its arrows, and what these may import."""
    arrows = drawn_arrows()
    nodes = set(arrows) | set().union(*arrows.values())

    def below(node: str) -> set[str]:
        return arrows[node].union(*(below(target) for target in arrows[node]))

    return {node: below(node) for node in nodes}


def services() -> set[str]:
    return {path.name for path in (REPOSITORY / "services" / "strata").iterdir() if path.is_dir()}


def node_of(package: str) -> str:
    return "services" if package in services() else package


def test_the_code_imports_only_along_the_arrows() -> None:
    drawing = allowed()
    against = set()
    for path in sources():
        own = path.parts[path.parts.index("strata", len(REPOSITORY.parts)) + 1]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] != "strata" or len(parts) < 2 or parts[1] == own:
                    continue
                if node_of(parts[1]) not in drawing[node_of(own)]:
                    against.add(f"{own} -> {parts[1]}")
    assert against == set()


def test_every_layer_of_the_import_rules_is_drawn() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    position = {
        node_of(package.strip().removeprefix("strata.")): number
        for number, layer in enumerate(layers)
        for package in layer.split("|")
    }
    drawing = allowed()
    assert set(drawing) == set(position)
    for node, targets in drawing.items():
        assert all(position[node] < position[target] for target in targets), node
