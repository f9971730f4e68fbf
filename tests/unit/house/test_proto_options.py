"""Options of protos for generated clients in other languages."""

from __future__ import annotations

import re
from pathlib import Path

PROTOS = Path(__file__).parents[3] / "protos"


def test_every_proto_sets_the_packages_of_generated_code() -> None:
    for path in sorted(PROTOS.rglob("*.proto")):
        name = path.relative_to(PROTOS).as_posix()
        options = dict(re.findall(r"^option (\w+) = (.+);$", path.read_text(), re.MULTILINE))
        service, version = name.split("/")[2:4]
        title = "".join(word.capitalize() for word in service.split("_"))
        namespace = f'"Strata.Api.{title}.{version.capitalize()}"'
        assert options["csharp_namespace"] == namespace, name
        go_name = service.replace("_", "") + version
        assert options["go_package"].endswith(f'/api/{service}/{version};{go_name}"'), name
        assert options["java_package"] == f'"strata.api.{service}.{version}"', name
        assert options["java_multiple_files"] == "true", name
