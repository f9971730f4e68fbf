"""Generates the code of the public contracts for the clients in TypeScript and Go.

`make clients` calls it. The code is not in the repository; the Maven module in `clients/java`
generates its own.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor
from google.rpc import error_details_pb2
from grpc_tools import protoc

from strata.api.errors.v1 import error_reason_pb2
from strata.gateway.registry import public_services

_CLIENTS = Path(__file__).resolve().parent
_PROTOS = _CLIENTS.parent / "protos"
_PROTOS_OF_PROTOBUF = Path(protoc.__file__).parent / "_proto"
_PROTOS_OF_GOOGLE = Path(error_details_pb2.__file__).parents[2]
_OWN = "strata/"


def public_files() -> list[str]:
    """Returns the names of the protos with the public services and what these use, sorted."""
    names: set[str] = set()

    def visit(file: FileDescriptor) -> None:
        if file.name not in names:
            names.add(file.name)
            for dependency in file.dependencies:
                visit(dependency)

    for service in public_services():
        visit(service.file)
    visit(error_reason_pb2.DESCRIPTOR)
    return sorted(name for name in names if name.startswith(_OWN))


def generate_typescript() -> None:
    """Writes `clients/typescript/src/strata` and `src/google`."""
    root = _CLIENTS / "typescript"
    target = root / "src"
    for folder in ("strata", "google"):
        shutil.rmtree(target / folder, ignore_errors=True)
    _protoc(
        f"--plugin={root / 'node_modules/.bin/protoc-gen-es'}",
        f"--es_out={target}",
        "--es_opt=target=ts,import_extension=js",
        *public_files(),
        error_details_pb2.DESCRIPTOR.name,
    )


def generate_go(plugins: Path) -> None:
    """Writes `clients/go/api`.

    Args:
        plugins: Folder with `protoc-gen-go` and `protoc-gen-connect-go`.
    """
    root = _CLIENTS / "go"
    shutil.rmtree(root / "api", ignore_errors=True)
    _protoc(
        f"--plugin={plugins / 'protoc-gen-go'}",
        f"--plugin={plugins / 'protoc-gen-connect-go'}",
        f"--go_out={root}",
        "--go_opt=module=strata.internal",
        f"--connect-go_out={root}",
        "--connect-go_opt=module=strata.internal,simple",
        *public_files(),
    )


def _protoc(*arguments: str) -> None:
    folders = (_PROTOS, _PROTOS_OF_PROTOBUF, _PROTOS_OF_GOOGLE)
    status = protoc.main(["protoc", *(f"-I{folder}" for folder in folders), *arguments])
    if status != 0:
        sys.exit(status)


def main(arguments: Sequence[str]) -> None:
    """Generates the code of one language: "typescript", or "go" and the folder of its plugins."""
    match arguments:
        case ["typescript"]:
            generate_typescript()
        case ["go", plugins]:
            generate_go(Path(plugins))
        case _:
            sys.exit("usage: generate.py typescript | go PLUGINS")


if __name__ == "__main__":
    main(sys.argv[1:])
