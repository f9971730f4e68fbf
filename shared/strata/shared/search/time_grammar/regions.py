"""Derives the hemisphere and the order of dates in digits from a user's time zone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

# Countries whose numeric dates begin with the month (CLDR's short format, "M/d/yy").
_MONTH_FIRST = frozenset({"AS", "FM", "GU", "MH", "MP", "PA", "PH", "PR", "PW", "UM", "US", "VI"})
# Both orders are common in Canada.
_EITHER_ORDER = frozenset({"CA"})


@dataclass(frozen=True, slots=True)
class Region:
    """Properties of a place.

    Attributes:
        southern: Summer is from December to February.
        month_first: Numeric dates begin with the month; None if not known.
    """

    southern: bool = False
    month_first: bool | None = None


def region_of(zone: str) -> Region:
    """Returns the region of an IANA time zone; an empty one if the zone has no place ("UTC").

    The first call reads two files of the package `tzdata` (8 ms).
    """
    return _regions().get(zone, _NOWHERE)


_NOWHERE = Region()


@cache
def _regions() -> dict[str, Region]:
    regions: dict[str, Region] = {}
    for line in _lines("zone.tab"):
        if line.startswith("#"):
            continue
        country, coordinates, zone = line.split("\t")[:3]
        month_first = None if country in _EITHER_ORDER else country in _MONTH_FIRST
        regions[zone] = Region(coordinates.startswith("-"), month_first)
    for line in _lines("tzdata.zi"):  # "L America/Argentina/Buenos_Aires America/Buenos_Aires"
        if alias := re.fullmatch(r"L (\S+) (\S+)", line):
            zone, name = alias.groups()
            if zone in regions:
                regions.setdefault(name, regions[zone])
    return regions


def _lines(name: str) -> list[str]:
    return files("tzdata").joinpath("zoneinfo", name).read_text(encoding="utf-8").splitlines()
