"""The limit of open files of a service's process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from child_processes import SOURCE_PATH

_PROGRAM = """
import resource, sys
from strata.shared.open_files import raise_open_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (256, int(sys.argv[1])))
raise_open_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.child_process
@pytest.mark.parametrize("hard", [256, 2_048])
def test_the_soft_limit_of_open_files_becomes_the_hard_limit(hard: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(hard)],
        env={"PYTHONPATH": SOURCE_PATH},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [str(hard), str(hard)]
