"""Disables gRPC's fork support in a serving process. Import it before `grpc`.

In a true fork, by which uvloop's own loop starts programs, gRPC would restart its threads before
the program begins: sometimes the child crashes, or hangs and blocks the event loop
(grpc/grpc#43055). Ours does not fork (`child_processes`), but `subprocess` does if it is to change
the user. gRPC reads the setting from the environment once, when it is imported; so each package
that has an entry point imports this module first. No code of Strata continues in a fork.
"""

from __future__ import annotations

import os

os.putenv("GRPC_ENABLE_FORK_SUPPORT", "false")
