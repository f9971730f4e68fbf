"""A circuit breaker, which refuses calls to a failing dependency without waiting for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from strata.protocol.errors import UnavailableError


class CircuitBreaker:
    """Refuses calls for a while after several failures in a row.

    Closed, it counts consecutive failures. Open, it refuses calls. After a pause it lets one
    call through as a probe: success closes it, failure doubles the pause.

    Args:
        name: The dependency, as named in the error.
        threshold: Consecutive failures that open it.
        first_pause: Seconds that it stays open the first time.
        longest_pause: Maximum seconds that it stays open.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        *,
        threshold: int = 5,
        first_pause: float = 0.5,
        longest_pause: float = 10.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name = name
        self._threshold = threshold
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._clock = clock
        self._failures = 0
        self._pause = first_pause
        self._open_until: float | None = None
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether calls are refused or only a probe is allowed."""
        return self._open_until is not None

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Guards the call in the block. Only `UnavailableError` counts as a failure.

        Raises:
            UnavailableError: The circuit is open; `retry_after` is the remaining pause.
        """
        probe = self._admit()
        try:
            yield
        except UnavailableError:
            self._failed(probe)
            raise
        except Exception:
            self._succeeded()  # the dependency answered, although with an error
            raise
        else:
            self._succeeded()
        finally:
            # A cancelled probe has no result, so the next call is the probe.
            if probe:
                self._probing = False

    def _admit(self) -> bool:
        if self._open_until is None:
            return False
        remaining = self._open_until - self._clock()
        if remaining > 0 or self._probing:
            raise UnavailableError(
                f"{self._name} does not answer; try again soon",
                metadata={"dependency": self._name},
                retry_after=max(remaining, 0.1),
            )
        self._probing = True
        return True

    def _failed(self, probe: bool) -> None:
        self._failures += 1
        if probe:
            self._pause = min(self._pause * 2, self._longest_pause)
        elif self._failures < self._threshold or self._open_until is not None:
            # Failures of calls that were in progress when it opened do not count again.
            return
        self._open_until = self._clock() + self._pause

    def _succeeded(self) -> None:
        self._failures = 0
        self._pause = self._first_pause
        self._open_until = None
