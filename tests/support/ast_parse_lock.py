"""Works around an error of CPython before 3.11.8 in `ast.parse`.

The depth of recursion is counted for the whole interpreter. If another thread parses at the same
time, or a finalizer does that a garbage collection runs during the call, the call fails with
"SystemError: AST constructor recursion depth mismatch" (gh-106905). pytest and Hypothesis parse
the source of a test when it fails, and a background thread may do so, too.
"""

from __future__ import annotations

import ast
import gc
import sys
import threading
from typing import Any

_parse = ast.parse
_lock = threading.RLock()


def parse_alone(*arguments: Any, **named: Any) -> Any:
    """Parses like `ast.parse`, while no other thread parses and no garbage is collected."""
    with _lock:
        collects = gc.isenabled()
        gc.disable()
        try:
            return _parse(*arguments, **named)
        finally:
            if collects:
                gc.enable()


def install() -> None:
    """Replaces `ast.parse` on versions that have the error."""
    if sys.version_info < (3, 11, 8):
        ast.parse = parse_alone
