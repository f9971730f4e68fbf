"""What generated clients in other languages need to be named without flags."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROTOS = Path(__file__).parents[3] / "protos"
FILES = sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.rglob("*.proto"))


@pytest.mark.parametrize("name", FILES)
def test_every_proto_says_where_generated_code_belongs(name: str) -> None:
    text = (PROTOS / name).read_text()
    options = dict(re.findall(r"^option (\w+) = (.+);$", text, re.MULTILINE))
    service, version = name.split("/")[2:4]
    title = "".join(word.capitalize() for word in service.split("_"))
    assert options["csharp_namespace"] == f'"Strata.Api.{title}.{version.capitalize()}"'
    go_name = service.replace("_", "") + version
    assert options["go_package"].endswith(f'/api/{service}/{version};{go_name}"')
    assert options["java_package"] == f'"strata.api.{service}.{version}"'
    assert options["java_multiple_files"] == "true"
