"""Keeps gRPC out of the forks of a process that serves. Import it before `grpc`.

uvloop starts programs by a true fork, in which gRPC would start its threads again before the
program begins: now and then the child crashes, or hangs and the event loop with it
(grpc/grpc#43055). Whether it does so gRPC reads from the environment, once, when it is imported;
so each package that has an entry point imports this one first. Nothing of ours goes on in a fork.
"""

from __future__ import annotations

import os

os.putenv("GRPC_ENABLE_FORK_SUPPORT", "false")
