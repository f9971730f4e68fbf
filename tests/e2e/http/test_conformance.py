"""The endpoints of the HTTP port pass the conformance tests of the Connect protocol and gRPC-Web.

The tests are those of the protocol's authors (connectrpc.com/conformance). The service that they
call is `doubles/conformance_server.py`, behind the code of the HTTP port.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest
from grpc_tools import protoc

from built_programs import TOOLS
from child_processes import SOURCE_PATH
from strata.shared.settings import KIB

_REPOSITORY = Path(__file__).parents[3]
_RUNNER = TOOLS / "connectconformance"
_PROTOS = TOOLS / "conformance-protos"
_SERVER = _REPOSITORY / "tests" / "doubles" / "conformance_server.py"

_FEATURES = """
features:
  versions: [HTTP_VERSION_1]
  protocols: [PROTOCOL_CONNECT, PROTOCOL_GRPC_WEB]
  codecs: [CODEC_PROTO, CODEC_JSON]
  compressions: [COMPRESSION_IDENTITY, COMPRESSION_GZIP]
  supportsH2c: false
  supportsTls: false
  supportsTlsClientCerts: false
  supportsHalfDuplexBidiOverHttp1: true
"""


@pytest.mark.child_process
@pytest.mark.skipif(not _RUNNER.exists(), reason="needs Go, and `make tools`")
async def test_all_conformance_cases_pass(tmp_path: Path) -> None:
    files = sorted(_PROTOS.rglob("*.proto"))
    folders = (_PROTOS, Path(protoc.__file__).parent / "_proto")
    outputs = [f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    arguments = [*(f"-I{folder}" for folder in folders), *outputs, *map(str, files)]
    assert protoc.main(["protoc", *arguments]) == 0
    features = tmp_path / "features.yaml"
    features.write_text(_FEATURES, "utf-8")
    process = await asyncio.create_subprocess_exec(
        *(str(_RUNNER), "--mode", "server", "--conf", str(features), "--max-servers", "1", "--"),
        *(sys.executable, str(_SERVER), str(tmp_path)),
        env={"PATH": os.defpath, "PYTHONPATH": SOURCE_PATH},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=1024 * KIB,
    )
    output, _ = await process.communicate()
    report = output.decode()
    totals = re.search(r"^(\d+) passed, (\d+) failed$", report, re.MULTILINE)
    assert totals is not None, report
    assert totals[2] == "0", report
    assert int(totals[1]) > 600
    assert process.returncode == 0
