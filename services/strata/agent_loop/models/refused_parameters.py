"""Stores which optional parameters models have refused.

A refusal may depend on the account, so it is remembered per project and key. It is forgotten
after `LIFETIME_S`, since accounts are verified and models are replaced while this process
runs.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from strata.agent_loop.domain.model.chat import ModelSettings
from strata.shared.context import calling_project
from strata.shared.logs import get_logger

LIFETIME_S = 3600.0
"""Seconds after which refusals are forgotten; the next request has all parameters again."""

MAX_PROJECTS = 1000
MAX_PER_PROJECT = 100
"""Maximum number of remembered models and keys per project; agents can name any number."""

_MAX_VALUES = 100

_T = TypeVar("_T")

_log = get_logger(__name__)


@dataclass(slots=True)
class Refusals:
    """The optional parameters that a model refused: completely, or with certain values.

    Attributes:
        names: Parameters that are always left out.
        values: Parameters that are left out with these values.
    """

    names: set[str] = field(default_factory=set)
    values: set[tuple[str, str]] = field(default_factory=set)

    def covers(self, name: str, value: Any) -> bool:
        """Returns whether a parameter with this value is left out."""
        if name in self.names:
            return True
        # Few models refuse a value. Without a refused value, long ones (messages) are not
        # formatted.
        return bool(self.values) and (name, repr(value)) in self.values

    def add(self, name: str, value: Any, *, only_value: bool) -> bool:
        """Leaves out a parameter from now on; returns False if it is left out already.

        Args:
            name: The parameter.
            value: Its value in the refused request.
            only_value: Whether other values are still sent.
        """
        if self.covers(name, value):
            return False
        if not only_value:
            self.names.add(name)
            return True
        if len(self.values) >= _MAX_VALUES:
            self.values.clear()
        self.values.add((name, repr(value)))
        return True


@dataclass(slots=True)
class _Entry(Generic[_T]):
    value: _T
    end: float


class RefusalMemory(Generic[_T]):
    """The detected properties of the models at one address, by project, key and model.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._projects: OrderedDict[str, OrderedDict[Hashable, _Entry[_T]]] = OrderedDict()

    def learnt(self, settings: ModelSettings, first: Callable[[], _T]) -> _T:
        """Returns the assumptions about this key and model, after the refusals of earlier requests.

        Args:
            settings: The model.
            first: Returns the assumptions before the first request.
        """
        project = calling_project()
        entries = self._projects.setdefault(project, OrderedDict())
        self._projects.move_to_end(project)
        if len(self._projects) > MAX_PROJECTS:
            self._projects.popitem(last=False)
        key = (settings.api_key, settings.model, settings.quirks)
        entry = entries.get(key)
        if entry is None or self._clock() >= entry.end:
            entry = entries[key] = _Entry(first(), self._clock() + LIFETIME_S)
        entries.move_to_end(key)
        if len(entries) > MAX_PER_PROJECT:
            entries.popitem(last=False)
        return entry.value


def log_refusal(settings: ModelSettings, parameter: str, value: Any, message: str) -> None:
    """Logs that a parameter is left out of the requests of a project.

    Args:
        settings: The model.
        parameter: The parameter.
        value: Its value in the refused request.
        message: The provider's error text, without the key.
    """
    _log.warning(
        "the model refused a setting; requests of this project leave it out for an hour",
        model=settings.handle,
        parameter=parameter,
        value=str(value)[:100],
        refusal=message[:300],
    )
