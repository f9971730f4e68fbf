"""The pool of spare processes: selection, and number of each shape."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from strata.shared.sandbox import Limits
from strata.tool_runner.sandbox.forkserver import ForkServer
from strata.tool_runner.sandbox.pool import Pool
from strata.tool_runner.sandbox.shape import Shape

SIZE = 4
SHAPES = [
    Shape.of(Limits()),
    Shape.of(Limits(), egress=True),
    Shape.of(Limits(), packages="one"),
    Shape.of(Limits(files=7)),
    Shape.of(Limits(processes=7)),
    Shape.of(Limits(disk_bytes=7)),
]


@dataclass(eq=False)
class Spare:
    """A spare child that has no process."""

    server: Server
    shape: Shape
    is_alive: bool = True
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


class Server:
    """A fork server that counts instead of forking."""

    def __init__(self) -> None:
        self.made: list[Spare] = []
        self.killed: list[Spare] = []
        self.full = False

    def spawn(self, shape: Shape) -> Spare:
        if self.full:
            raise OSError("no descriptor left")
        self.made.append(Spare(self, shape))
        return self.made[-1]

    def kill(self, child: Spare) -> None:
        self.killed.append(child)
        child.is_alive = False


def real(server: Server) -> ForkServer:
    return cast("ForkServer", server)


class Pools(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(SIZE)
        self.server = Server()
        self.servers = [self.server]
        self.taken: list[Spare] = []
        self.last: Shape | None = None

    @rule(shape=st.sampled_from(SHAPES))
    def call(self, shape: Shape) -> None:
        child = cast("Any", self.pool.take(real(self.server), shape))
        if child is not None:
            assert child not in self.taken
            assert not child.closed
            assert child.is_alive
            assert (child.server, child.shape) == (self.server, shape)
            self.taken.append(child)
        self.pool.refill(real(self.server), shape)
        assert len(self.pool) == SIZE
        self.last = shape

    @rule()
    def the_next_call_of_this_kind_is_ready(self) -> None:
        if self.last is not None:
            child = cast("Any", self.pool.take(real(self.server), self.last))
            alive = [c for c in self.waiting() if c.shape == self.last]
            assert child is not None or not alive
            if child is not None:
                self.taken.append(child)

    @rule()
    def the_sandbox_is_idle(self) -> None:
        self.pool.shrink(real(self.server), 1)
        assert len(self.waiting()) == len(self.pool) <= 1

    @rule(picked=st.randoms(use_true_random=False))
    def one_dies(self, picked: Any) -> None:
        if waiting := self.waiting():
            picked.choice(waiting).is_alive = False

    @rule()
    def the_fork_server_is_replaced(self) -> None:
        self.pool.clear()
        assert len(self.pool) == 0
        self.server = Server()
        self.servers.append(self.server)
        self.last = None

    def made(self) -> Iterator[Spare]:
        return itertools.chain.from_iterable(server.made for server in self.servers)

    def waiting(self) -> list[Spare]:
        """Returns the waiting processes of the current server."""
        return [
            child
            for child in self.server.made
            if child not in self.taken and not child.closed and child.is_alive
        ]

    @invariant()
    def nobody_is_closed_twice_or_in_use(self) -> None:
        assert all(child.closed <= 1 for child in self.made())
        assert not any(child.closed for child in self.taken)

    @invariant()
    def no_more_wait_than_there_is_service_for(self) -> None:
        assert len(self.waiting()) <= len(self.pool) <= SIZE

    def teardown(self) -> None:
        self.pool.clear()
        assert all(child.closed == 1 for child in self.made() if child not in self.taken)


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def fill(shapes: list[Shape]) -> tuple[Pool, Server]:
    pool, server = Pool(SIZE), Server()
    for shape in shapes:
        pool.take(real(server), shape)
        pool.refill(real(server), shape)
    return pool, server


def counts(pool: Pool, server: Server) -> dict[Shape, int]:
    by_shape = dict.fromkeys(SHAPES, 0)
    for shape in SHAPES:
        while pool.take(real(server), shape) is not None:
            by_shape[shape] += 1
    return {shape: count for shape, count in by_shape.items() if count}


def test_shapes_that_are_called_in_turn_are_all_kept_ready() -> None:
    pool, server = fill([SHAPES[0], SHAPES[1], SHAPES[2]])
    made = len(server.made)
    for shape in [SHAPES[0], SHAPES[1], SHAPES[2]] * 5:
        assert pool.take(real(server), shape) is not None
        pool.refill(real(server), shape)
    # Each used process is replaced by one new process, and none is discarded.
    assert len(server.made) == made + 15
    assert len(server.killed) == 2
    assert counts(pool, server) == {SHAPES[0]: 2, SHAPES[1]: 1, SHAPES[2]: 1}


def test_the_least_recently_called_shape_is_dropped() -> None:
    pool, server = fill(SHAPES[:5])
    assert set(counts(pool, server)) == set(SHAPES[1:5])
    assert [child.shape for child in server.killed][-1] == SHAPES[0]


def test_an_idle_pool_keeps_a_process_of_the_shape_of_the_last_call() -> None:
    pool, server = fill([SHAPES[0], SHAPES[1], SHAPES[2]])
    pool.shrink(real(server), 1)
    assert counts(pool, server) == {SHAPES[2]: 1}
    pool.refill(real(server), SHAPES[2])
    assert counts(pool, server) == {SHAPES[2]: SIZE}


def test_a_pool_of_size_zero_stays_empty() -> None:
    pool, server = Pool(0), Server()
    assert pool.take(real(server), SHAPES[0]) is None
    pool.refill(real(server), SHAPES[0])
    assert (len(pool), server.made) == (0, [])


def test_without_descriptors_the_pool_is_unchanged() -> None:
    pool, server = fill([SHAPES[0]])
    assert pool.take(real(server), SHAPES[0]) is not None
    server.full = True
    with pytest.raises(OSError, match="no descriptor"):
        pool.refill(real(server), SHAPES[0])
    server.full = False
    assert counts(pool, server) == {SHAPES[0]: SIZE - 1}


def test_a_recreated_packages_folder_has_another_shape(tmp_path: Any) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    first = Shape.of(Limits(), packages="packages", packages_status=folder.stat())
    assert first == Shape.of(Limits(), packages="packages", packages_status=folder.stat())
    folder.rename(tmp_path / "old")
    folder.mkdir()
    assert first != Shape.of(Limits(), packages="packages", packages_status=folder.stat())


def test_fields_used_only_by_the_service_do_not_change_the_shape() -> None:
    one = Limits(wall_seconds=1.0, output_bytes=1, result_bytes=1, tree_bytes=1)
    assert Shape.of(one) == Shape.of(Limits())
