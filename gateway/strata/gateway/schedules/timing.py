"""Times of schedules. Pure: the caller passes the present time, which is the database's."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from strata.shared.local_time import is_time_zone

MAX_CRON_CHARS = 200
_FIELDS = 5
# Number of future ticks for checking the smallest interval.
_SAMPLED_TICKS = 64
_FIRST_WINDOW = timedelta(hours=1)
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


class TimingError(ValueError):
    """The times of a schedule are invalid.

    Attributes:
        field: The invalid field of the request.
    """

    def __init__(self, field: str, description: str) -> None:
        super().__init__(f"{field} {description}")
        self.field = field
        self.description = description


@dataclass(frozen=True)
class Timing:
    """The times of a schedule: a cron expression, or one time.

    A fixed time of day that a day lacks, because the clocks go forward, moves to the first minute
    after the gap; one that occurs twice counts once, at its first occurrence. An expression whose
    minute or hour begins with "*" follows elapsed time: it has no tick in the gap, and ticks in
    both passes of the overlap. Debian's cron does the same.

    Attributes:
        cron: Minute, hour, day of month, month, day of week; empty for a single time.
        time_zone: IANA name of the zone of `cron`.
        start_time: The single time; None with `cron`.
    """

    cron: str = ""
    time_zone: str = "UTC"
    start_time: datetime | None = None

    @property
    def has_known_zone(self) -> bool:
        """Whether the tz database of this machine has the zone; it may differ between machines."""
        return not self.cron or is_time_zone(self.time_zone)

    def check(self, now: datetime, *, min_interval: timedelta) -> datetime:
        """Returns the first tick after `now`.

        Raises:
            TimingError: There is none, the expression or the zone is invalid, or two ticks are
                closer than `min_interval`.
        """
        if bool(self.cron) == (self.start_time is not None):
            raise TimingError("cron", "or start_time must be set, and not both")
        if self.start_time is not None:
            if self.start_time <= now:
                raise TimingError("start_time", "must be in the future")
            return self.start_time
        _check_zone(self.time_zone)
        self._check_expression(now)
        ticks = list(islice(self.ticks_after(now), _SAMPLED_TICKS))
        if not ticks:
            raise TimingError("cron", "names a time that never comes")
        shortest = min((b - a for a, b in pairwise(ticks)), default=min_interval)
        if shortest < min_interval:
            raise TimingError(
                "cron",
                f"starts runs {shortest.total_seconds():g} seconds apart; the least that this"
                f" server allows is {min_interval.total_seconds():g} seconds",
            )
        return ticks[0]

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns the first tick after a moment, in UTC; None if there is none."""
        return next(self.ticks_after(moment), None)

    def ticks_after(self, moment: datetime) -> Iterator[datetime]:
        """Yields the ticks after a moment, in UTC, in order, each once."""
        if self.start_time is not None:
            if self.start_time > moment:
                yield self.start_time
            return
        last = moment
        minute, hour = self.cron.split()[:2]
        elapsed = minute.startswith("*") or hour.startswith("*")
        for tick in self._elapsed_ticks(moment) if elapsed else self._fixed_ticks(moment):
            # Two times of day in one gap are the same tick; one in an overlap counts once.
            if tick > last:
                last = tick
                yield tick

    def _fixed_ticks(self, moment: datetime) -> Iterator[datetime]:
        """Yields the ticks of an expression with fixed times of day."""
        local = moment.astimezone(self._zone).replace(tzinfo=None)
        for wall in CronSim(self.cron, local):
            tick = wall.replace(tzinfo=self._zone).astimezone(UTC)
            local_time = tick.astimezone(self._zone).replace(tzinfo=None)
            if local_time != wall:
                # The time is in a gap, whose length is the difference.
                tick = self._offset_change(tick - (local_time - wall), tick) or tick
            yield tick

    def _elapsed_ticks(self, moment: datetime) -> Iterator[datetime]:
        """Yields the ticks of an expression that follows elapsed time.

        `CronSim` gets local times without a zone, separately for each period with one offset: with
        a zone, it searches hour by hour from a full hour, and misses ticks after a change of the
        offset by half an hour.
        """
        start: datetime | None = moment
        while start is not None:
            start = yield from self._ticks_of_offset(start, inclusive=start != moment)

    def _ticks_of_offset(
        self, start: datetime, *, inclusive: bool
    ) -> Generator[datetime, None, datetime | None]:
        """Yields the ticks until the next change of the offset, and returns that moment.

        Args:
            start: The first moment.
            inclusive: Whether `start` itself can be a tick.
        """
        offset = self._offset(start)
        before = start - _SECOND if inclusive else start
        checked = start
        for wall in CronSim(self.cron, (before + offset).replace(tzinfo=None)):
            tick = (wall - offset).replace(tzinfo=UTC)
            change = self._offset_change(checked, tick)
            if change is not None:
                return change
            checked = tick
            yield tick
        return None

    def _offset_change(self, start: datetime, end: datetime) -> datetime | None:
        """Returns the first moment, after `start` and up to `end`, with another offset."""
        offset = self._offset(start)
        while start < end:
            # No zone changes its offset twice within a day.
            day = min(start + _DAY, end)
            if self._offset(day) == offset:
                start = day
                continue
            same, changed = start, day
            while changed - same > _SECOND:
                middle = same + (changed - same) / 2
                if self._offset(middle) == offset:
                    same = middle
                else:
                    changed = middle
            return changed.replace(microsecond=0)
        return None

    def _offset(self, moment: datetime) -> timedelta:
        offset = moment.astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset

    def due(self, since: datetime, now: datetime, most: int) -> Sequence[datetime]:
        """Returns the newest ticks from `since`, which is a tick, up to `now`, in order.

        Args:
            since: The first tick that was not processed.
            now: The present time, not before `since`.
            most: Maximum number of ticks.
        """
        window = _FIRST_WINDOW
        # From the end backwards in growing windows, so that a year without processing does not
        # mean iterating over every minute of it.
        while True:
            start = max(since, now - window)
            ticks = [since] if start == since else []
            for tick in self.ticks_after(start):
                if tick > now:
                    break
                ticks.append(tick)
            if len(ticks) >= most or start == since:
                return ticks[-most:]
            window *= 4

    @cached_property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.time_zone)

    def _check_expression(self, now: datetime) -> None:
        if len(self.cron) > MAX_CRON_CHARS:
            raise TimingError("cron", f"must have at most {MAX_CRON_CHARS} characters")
        if len(self.cron.split()) != _FIELDS:
            raise TimingError(
                "cron",
                "must have 5 fields: minute, hour, day of month, month, day of week,"
                ' such as "30 9 * * MON-FRI"',
            )
        try:
            CronSim(self.cron, now.astimezone(self._zone))
        # Some malformed expressions raise built-in exceptions.
        except (CronSimError, ValueError, AssertionError, TypeError, KeyError) as error:
            reason = str(error) or "it cannot be read"
            raise TimingError("cron", f"is not a valid cron expression: {reason}") from None


def _check_zone(name: str) -> None:
    if not is_time_zone(name):
        raise TimingError(
            "time_zone", 'must be an IANA name of a time zone, such as "Europe/Berlin" or "UTC"'
        )
