"""Modules that importing the client loads, and the gateway that it connects to by default."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import strata
import strata.client
from child_processes import SOURCE_PATH
from strata.client import InvalidArgumentError, UnauthenticatedError, UnreachableError, connect


@pytest.mark.child_process
def test_importing_the_package_does_not_load_grpc() -> None:
    program = (
        "import sys, strata.client\n"
        "assert 'grpc' not in sys.modules\n"
        "for name in strata.client.__all__: getattr(strata.client, name)\n"
        "print(sorted(m for m in sys.modules if m.startswith('strata.') and m.count('.') == 1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": SOURCE_PATH, "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['strata.api', 'strata.client', 'strata.protocol']\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert set(strata.client.__all__) <= set(dir(strata.client))
    with pytest.raises(AttributeError, match="nothing"):
        _ = strata.client.nothing


async def test_error_without_an_address_or_a_running_strata_explains_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STRATA_ADDRESS", "STRATA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UnreachableError, match="Start it with: strata up"):
        async with connect(data=tmp_path):
            pass
    with pytest.raises(UnauthenticatedError, match="Give api_key, or set STRATA_API_KEY"):
        async with connect("127.0.0.1:1", data=tmp_path):
            pass


@pytest.mark.parametrize("address", ["http://strata.example.org", "nowhere", "host:99999"])
async def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgumentError):
        async with connect(address, api_key="key"):
            pass
