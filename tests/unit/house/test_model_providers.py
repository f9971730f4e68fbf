"""Model providers are named in their presets and adapters, and nowhere else in the product."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from strata.agent_loop.models.presets.table import PRESETS
from unit.house.repository import REPOSITORY, name_of, sources, trees

# The names of OpenAI's protocol, which many servers speak.
PROTOCOLS = {"openai"}
NAMES = {name for preset in PRESETS.values() for name in (preset.name, preset.title)} - PROTOCOLS
MODELS = Path("services/strata/agent_loop/models")
OWN_FOLDERS = ("presets", "dialects", "openai_api", "anthropic_api")


def test_no_other_module_names_a_provider() -> None:
    own = tuple(str(MODELS / folder) for folder in OWN_FOLDERS)
    others = (path for path in sources() if not name_of(path).startswith(own))
    named = [
        f"{name_of(path)}:{node.lineno}: {node.value}"
        for path, tree in trees(others, re.compile("|".join(map(re.escape, NAMES))))
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in NAMES
    ]
    assert named == []


def test_every_preset_is_one_file_and_one_entry() -> None:
    files = {path.stem for path in (REPOSITORY / MODELS / "presets").glob("*.py")}
    assert set(PRESETS) == files - {"__init__", "base", "fields", "table", "templates"}
