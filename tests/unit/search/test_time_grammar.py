"""The words and the calendar of the languages of time expressions."""

from __future__ import annotations

import re
import string
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest
from babel import Locale
from hypothesis import given
from hypothesis import strategies as st

from strata.shared.search.folded_text import fold, normalise
from strata.shared.search.languages import probable_languages
from strata.shared.search.time_expressions import time_ranges
from strata.shared.search.time_grammar.calendar_spans import days_back, unit_span
from strata.shared.search.time_grammar.han_numerals import numeral, parse_number
from strata.shared.search.time_grammar.holidays import Holiday, easter_sunday, holiday_span
from strata.shared.search.time_grammar.matching import SPACED, UNSPACED
from strata.shared.search.time_grammar.numeric_dates import NUMERIC_DATES
from strata.shared.search.time_grammar.regions import region_of
from strata.shared.search.time_grammar.rules import UNITS, Language

LANGUAGES = (*SPACED, *UNSPACED)

# Abbreviations that are also ordinary words: the sea, seven, "ago", "may".
_AMBIGUOUS = {
    "de": {"Mär"},
    "fr": {"sept."},
    "es": {"mar", "may", "jun", "jul", "ago"},
}


def _code(language: Language) -> str:
    return language.code


@pytest.mark.parametrize("language", LANGUAGES, ids=_code)
@pytest.mark.parametrize("width", ["wide", "abbreviated"])
def test_months_have_the_names_of_cldr(language: Language, width: str) -> None:
    months = language.words["month"]
    missing = [
        name
        for context in ("format", "stand-alone")
        for number, name in Locale.parse(language.code).months[context][width].items()
        if months.get(fold(name).rstrip(".")) != number
    ]
    assert set(missing) <= _AMBIGUOUS.get(language.code, set())


@pytest.mark.parametrize("language", LANGUAGES, ids=_code)
def test_weekdays_have_the_names_of_cldr(language: Language) -> None:
    weekdays = language.words["weekday"]
    for number, name in Locale.parse(language.code).days["format"]["wide"].items():
        assert weekdays[fold(name)] == number


@pytest.mark.parametrize("language", [*LANGUAGES, NUMERIC_DATES], ids=_code)
def test_every_rule_compiles_and_can_be_triggered(language: Language) -> None:
    triggers = {slot for _, slot in language.triggers()} | {"year"}
    for rule in language.compiled_rules:
        assert list(rule.matches("")) == []
        if language.spaced:
            assert rule.triggers
            assert rule.triggers <= triggers


@pytest.mark.parametrize("language", [*LANGUAGES, NUMERIC_DATES], ids=_code)
@given(data=st.data())
def test_any_mix_of_the_words_of_a_language_is_accepted(
    language: Language, data: st.DataObject
) -> None:
    patterns = [rule.pattern for rule in language.rules]
    patterns += [opening.before + " " + opening.after for opening in language.openings]
    patterns += [" ".join(connection) for connection in language.connections]
    literals = {word for pattern in patterns for word in re.findall(r"[^\W\d_]+", pattern)}
    lexicons = [list(lexicon) for lexicon in language.lexicons.values()] or [["1"]]
    word = (
        st.sampled_from(lexicons).flatmap(st.sampled_from)
        | st.sampled_from(sorted(literals))
        | st.sampled_from(["3", "7.", "31", "2024", "'", "-", "30日", "2019年", "2026-02-30"])
    )
    words = data.draw(st.lists(word, min_size=1, max_size=6))
    today = data.draw(st.dates(date(1971, 1, 1), date(2090, 1, 1)))
    now = datetime(today.year, today.month, today.day, 12, tzinfo=UTC)
    text = (" " if language.spaced else "").join(words)
    for time_range in time_ranges(text, now, ZoneInfo("Europe/Lisbon")):
        assert time_range.words in text
        assert time_range.start is not None or time_range.end is not None
        if time_range.start is not None and time_range.end is not None:
            assert time_range.start < time_range.end


@pytest.mark.parametrize("language", LANGUAGES, ids=_code)
def test_the_lexicon_contains_only_known_units(language: Language) -> None:
    assert set(language.lexicons["unit"].values()) <= set(range(len(UNITS)))


@pytest.mark.parametrize(
    ("year", "sunday"),
    [
        (1961, date(1961, 4, 2)),
        (2008, date(2008, 3, 23)),
        (2011, date(2011, 4, 24)),
        (2024, date(2024, 3, 31)),
        (2025, date(2025, 4, 20)),
        (2026, date(2026, 4, 5)),
        (2038, date(2038, 4, 25)),
    ],
)
def test_easter_sunday_is_computed(year: int, sunday: date) -> None:
    assert easter_sunday(year) == sunday


@pytest.mark.parametrize("holiday", Holiday)
@given(year=st.integers(2010, 2050))
def test_holidays_are_days_of_their_year(holiday: Holiday, year: int) -> None:
    first, end = holiday_span(holiday, year)
    assert first < end
    assert first.year == year


def test_thanksgiving_is_the_fourth_thursday_of_november() -> None:
    assert holiday_span(Holiday.THANKSGIVING, 2026)[0] == date(2026, 11, 26)
    assert holiday_span(Holiday.THANKSGIVING, 2024)[0] == date(2024, 11, 28)


def test_chinese_new_year_is_unknown_outside_the_table() -> None:
    assert holiday_span(Holiday.CHINESE_NEW_YEAR, 2026) == (date(2026, 2, 16), date(2026, 2, 24))
    with pytest.raises(ValueError, match="2051"):
        holiday_span(Holiday.CHINESE_NEW_YEAR, 2051)


@pytest.mark.parametrize(
    ("zone", "southern", "month_first"),
    [
        ("Europe/Lisbon", False, False),
        ("America/New_York", False, True),
        ("US/Pacific", False, True),
        ("America/Toronto", False, None),
        ("America/Sao_Paulo", True, False),
        ("America/Buenos_Aires", True, False),
        ("Australia/NSW", True, False),
        ("Asia/Calcutta", False, False),
        ("UTC", False, None),
        ("Etc/GMT+5", False, None),
        ("Nowhere/Land", False, None),
    ],
)
def test_time_zones_have_a_hemisphere_and_a_date_order(
    zone: str, southern: bool, month_first: bool | None
) -> None:
    region = region_of(zone)
    assert (region.southern, region.month_first) == (southern, month_first)


@given(st.integers(1, 99))
def test_numbers_in_han_characters_are_parsed(number: int) -> None:
    assert parse_number(numeral(number)) == number
    assert parse_number(str(number)) == number


@pytest.mark.parametrize("text", ["十十", "一二", "百", "", "三十二一"])
def test_other_characters_are_not_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_number(text)


@pytest.mark.parametrize(
    ("day", "number", "unit", "expected"),
    [
        (date(2024, 3, 31), 1, "month", date(2024, 2, 29)),
        (date(2024, 2, 29), 1, "year", date(2023, 2, 28)),
        (date(2026, 1, 15), 1, "quarter", date(2025, 10, 15)),
        (date(2026, 1, 1), 2, "week", date(2025, 12, 18)),
    ],
)
def test_days_are_counted_back_by_unit(day: date, number: int, unit: str, expected: date) -> None:
    assert days_back(day, number, unit) == expected


@given(st.dates(date(1900, 1, 1), date(2100, 1, 1)))
def test_the_span_of_a_unit_contains_its_day(day: date) -> None:
    for unit in ("day", "week", "month", "quarter", "year"):
        first, end = unit_span(day, unit)
        assert first <= day < end


@given(st.text())
def test_folding_keeps_the_positions_of_characters(text: str) -> None:
    text = normalise(text)
    folded = fold(text)
    assert len(folded) == len(text)
    assert not set(folded) & set(string.ascii_uppercase)


def test_spellings_of_one_word_are_folded_to_the_same_form() -> None:
    assert fold(normalise("Été")) == fold(normalise("E\u0301TE\u0301")) == "ete"
    assert fold("L\u2019ann\u00e9e") == "l'annee"
    assert fold("２０２６年") == "2026年"
    assert fold("上週") == fold("上周")


@pytest.mark.parametrize(
    ("text", "languages"),
    [
        ("Where do I live?", {"en"}),
        ("Wo ist hier ein Café?", {"de"}),
        ("Où est-ce que j'habite ?", {"fr"}),
        ("¿Cómo se llama mi gato?", {"es"}),
        ("我住在哪里?", {"zh"}),
        ("去年", {"zh", "ja"}),
        ("どこに住んでいますか", {"ja"}),
        ("xyz 123", set()),
        ("", set()),
    ],
)
def test_probable_languages_of_texts_are_detected(text: str, languages: set[str]) -> None:
    assert probable_languages(text) == languages
