"""Numbers, times of day, days of the week and dates in a statement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache

from strata.shared.search.languages import stop_word_languages
from strata.shared.search.outdated.language_rules import LanguageRules
from strata.shared.search.time_grammar.han_numerals import parse_number

_DATE = re.compile(
    r"(?P<d>\d{1,2})(?:\.|st|nd|rd|th|er)? ?(?:of |de )?<m(?P<m>\d+)>"
    r"|<m(?P<m2>\d+)> ?(?:the )?(?P<d2>\d{1,2})(?:st|nd|rd|th|日|号)?"
)
_WEEKDAY = re.compile(r"<w(\d)>")
_DIGITS = re.compile(r"(?<![\w.,-])\d+(?:[ .,:/-]?\d+)*")
_HAN_DIGITS = re.compile(
    "(?:[0-9]+(?:[.,:/-]?[0-9]+)*[千百万]?|[零〇一二两三四五六七八九十百千万]+)"
)
_UNIT_BEHIND = re.compile(r" ?([€$£¥%]|[^\W\d_]+)")
_UNIT_BEFORE = re.compile(r"([€$£¥#]|[^\W\d_]+) ?$")
_HAN_UNIT = re.compile("(?:元|円|块|号室|号|公斤|キロ|度|岁|歳|人|個|个|%)")
_GROUPED = re.compile(r"[ .,](?=\d{3}(?!\d))")
# Whether the words mean the second half of the day.
_HALVES = {
    **dict.fromkeys(("am", "上午", "早上", "午前", "朝"), False),
    **dict.fromkeys(("pm", "下午", "晚上", "午後", "昼", "夜"), True),
}


@lru_cache(maxsize=4_096)
def measured(clause: str, rules: LanguageRules) -> Mapping[str, frozenset[str]]:
    """Returns the values in a folded clause by kind.

    The kinds are hours, weekdays, dates, and numbers by their unit: numbers of different things
    cannot be compared.
    """
    values: dict[str, set[str]] = {}
    if rules.weekdays or rules.months:
        pattern, codes = _names(rules)
        clause = pattern.sub(lambda match: f" {codes[match.group().strip()]}", clause)
    if "<" in clause:
        for match in _DATE.finditer(clause):
            month, day = match["m"] or match["m2"], match["d"] or match["d2"]
            values.setdefault("date", set()).add(f"{month}-{int(day)}")
        values.setdefault("weekday", set()).update(_WEEKDAY.findall(clause))
        clause = _WEEKDAY.sub(" ", _DATE.sub(" ", clause))
    hours = rules.compiled.hour
    for match in hours.finditer(clause):
        values.setdefault("hour", set()).add(_hour(match))
    clause = hours.sub(" ", clause)
    for match in (_HAN_DIGITS if rules.unspaced else _DIGITS).finditer(clause):
        unit = _han_unit(clause, match) if rules.unspaced else _unit(clause, match, rules.code)
        values.setdefault(f"number {unit}", set()).add(_GROUPED.sub("", match.group()))
    return {kind: frozenset(group) for kind, group in values.items() if group}


def _hour(match: re.Match[str]) -> str:
    parts = [group for group in match.groups() if group]
    numbers = [part for part in parts if part not in _HALVES]
    try:
        hour = parse_number(numbers[0])
    except ValueError:
        return match.group()
    afternoon = any(_HALVES.get(part) for part in parts)
    return f"{hour + 12 if afternoon and hour < 12 else hour}:{(numbers[1:] or ['00'])[0]}"


def _unit(clause: str, match: re.Match[str], language: str) -> str:
    """Returns the word next to a number: the word after it, or else the word before it."""
    behind = _UNIT_BEHIND.match(clause, match.end())
    before = _UNIT_BEFORE.search(clause, 0, match.start())
    for word in (behind, before):
        if word is not None and language not in stop_word_languages(word[1]):
            return word[1]
    return ""


def _han_unit(clause: str, match: re.Match[str]) -> str:
    unit = _HAN_UNIT.match(clause, match.end())
    return unit.group() if unit else ""


@cache
def _names(rules: LanguageRules) -> tuple[re.Pattern[str], Mapping[str, str]]:
    codes = {
        name: f"<{letter}{number}>"
        for letter, group in (("w", rules.weekdays), ("m", rules.months))
        for number, names in enumerate(group)
        for name in names.split("|")
    }
    longest = sorted(codes, key=len, reverse=True)
    names = "|".join(map(re.escape, longest))
    return re.compile(names if rules.unspaced else f" (?:{names})(?= )"), codes
