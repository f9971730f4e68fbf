"""The circuit breaker: it opens after consecutive failures, and closes after a successful call."""

import asyncio

import pytest

from strata.protocol.errors import InternalError, UnavailableError
from strata.shared.search.vectors.circuit_breaker import CircuitBreaker


class Hand:
    """A clock that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def circuit(clock: Hand) -> CircuitBreaker:
    return CircuitBreaker("engine", threshold=3, first_pause=1.0, longest_pause=3.0, clock=clock)


def fail(circuit: CircuitBreaker, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(UnavailableError, match="down"), circuit.guard():
            raise UnavailableError("down")


def refused(circuit: CircuitBreaker) -> bool:
    try:
        with circuit.guard():
            return False
    except UnavailableError as error:
        return error.retry_after is not None


def test_opens_only_after_failures_in_a_row(circuit: CircuitBreaker) -> None:
    fail(circuit, 2)
    assert not refused(circuit)
    fail(circuit, 2)
    assert not circuit.is_open
    fail(circuit)
    assert circuit.is_open
    assert refused(circuit)


def test_a_refusal_by_the_dependency_does_not_count_as_a_failure(circuit: CircuitBreaker) -> None:
    fail(circuit, 2)
    with pytest.raises(InternalError), circuit.guard():
        raise InternalError("bad request")
    fail(circuit, 2)
    assert not circuit.is_open


def test_after_the_pause_one_call_is_tried_and_success_closes(
    circuit: CircuitBreaker, clock: Hand
) -> None:
    fail(circuit, 3)
    clock.now += 1.0
    with circuit.guard():
        assert refused(circuit)
    assert not circuit.is_open
    assert not refused(circuit)


def test_failed_attempts_lengthen_the_pause_up_to_a_limit(
    circuit: CircuitBreaker, clock: Hand
) -> None:
    fail(circuit, 3)
    for pause in (1.0, 2.0, 3.0, 3.0):
        clock.now += pause - 0.01
        assert refused(circuit)
        clock.now += 0.01
        fail(circuit)
    clock.now += 3.0
    assert not refused(circuit)
    fail(circuit, 3)
    clock.now += 1.0
    assert not refused(circuit)


def test_calls_in_progress_at_the_opening_do_not_lengthen_the_pause(
    circuit: CircuitBreaker, clock: Hand
) -> None:
    guards = [circuit.guard() for _ in range(10)]
    for guard in guards:
        guard.__enter__()
    for guard in guards:
        error = UnavailableError("down")
        assert not guard.__exit__(UnavailableError, error, None)
    clock.now += 1.0
    assert not refused(circuit)


def test_after_a_cancelled_attempt_the_next_call_is_tried(
    circuit: CircuitBreaker, clock: Hand
) -> None:
    fail(circuit, 3)
    clock.now += 1.0
    with pytest.raises(asyncio.CancelledError), circuit.guard():
        raise asyncio.CancelledError
    assert circuit.is_open
    assert not refused(circuit)
    assert not circuit.is_open
