"""English expressions of time."""

from __future__ import annotations

from strata.shared.search.time_grammar import readers
from strata.shared.search.time_grammar.holidays import Holiday
from strata.shared.search.time_grammar.rules import (
    DAY,
    FEW,
    HOUR,
    MINUTE,
    MONTH,
    NOT_A_COUNT,
    QUARTER,
    WEEK,
    YEAR,
    Language,
    Opening,
    RangeWords,
    Rule,
    Side,
    numbered,
)

_NUMBERS = {
    "a": 1, "an": 1, "one": 1, "two": 2, "couple of": 2, "a couple of": 2, "a couple": 2,
    "three": 3, "few": FEW, "a few": FEW, "several": FEW, "some": FEW, "four": 4, "five": 5,
    "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12,
    "fifteen": 15, "twenty": 20, "thirty": 30,
}  # fmt: skip
_HOLIDAYS = {
    "christmas": Holiday.CHRISTMAS, "christmas day": Holiday.CHRISTMAS, "xmas": Holiday.CHRISTMAS,
    "christmas eve": Holiday.CHRISTMAS_EVE, "new year's eve": Holiday.NEW_YEARS_EVE,
    "new years eve": Holiday.NEW_YEARS_EVE, "new year's day": Holiday.NEW_YEARS_DAY,
    "new year's": Holiday.NEW_YEARS_DAY, "new years": Holiday.NEW_YEARS_DAY,
    "easter": Holiday.EASTER, "pentecost": Holiday.PENTECOST, "halloween": Holiday.HALLOWEEN,
    "valentine's day": Holiday.VALENTINES_DAY, "valentines day": Holiday.VALENTINES_DAY,
    "thanksgiving": Holiday.THANKSGIVING, "the fourth of july": Holiday.FOURTH_OF_JULY,
    "chinese new year": Holiday.CHINESE_NEW_YEAR, "lunar new year": Holiday.CHINESE_NEW_YEAR,
}  # fmt: skip

_DAY, _DAY2 = r"{day}(?:st|nd|rd|th)?", r"{day2}(?:st|nd|rd|th)?"
_YEAR = r"(?: ?, ?| )(?:(?:of|in) )?(?:{year}|{years})"
_OR_NOT = f"(?:{_YEAR})?"
_TO = r"(?: ?- ?| (?:to|until|till|through|thru) (?:the )?)"
_PART = (
    r"(?:(?:early|late|mid|(?:the )?(?:beginning|start|middle|end|rest|month|(?:first|last) \w+"
    r" (?:weeks|days)|(?:first|second|third|fourth|last|1st|2nd|3rd|4th) (?:week|half|days))"
    r" of)[ -])"
)
# "May" and "march" are also verbs, so a month needs a word before it, or a year or a day.
_IN = rf"(?:(?:in|during|around|throughout|back in|over) (?:the )?{_PART}?|{_PART})"
# "The top 5 may change", "this may help" and "in the fall of Rome" do not name a time.
_NO_VERB = (
    r"(?:(?<!may)|(?! (?:i|we|you|he|she|it|they|be|not|have|need|also|well|only|still|help|change"
    r"|sound|seem|look|take|\w+ (?:be|have))(?!\w)))"
)
_AT_END = r"(?:(?<!this may)(?<!this march)|(?= *(?:$|[?.!,;])))"
_FILLERS = (
    r"(?: the| in| on| about| around| early| late| mid| (?:beginning|start|middle|end)(?: of)?)*"
)

ENGLISH = Language(
    code="en",
    lexicons={
        "month": numbered(
            "january|jan",
            "february|feb",
            "march|mar",
            "april|apr",
            "may",
            "june|jun",
            "july|jul",
            "august|aug",
            "september|sept|sep",
            "october|oct",
            "november|nov",
            "december|dec",
            start=1,
        ),
        "weekday": numbered(
            "monday",
            "tuesday|tues|tue",
            "wednesday",
            "thursday|thurs|thur|thu",
            "friday|fri",
            "saturday",
            "sunday",
        ),
        "weekdays": numbered(
            "mondays", "tuesdays", "wednesdays", "thursdays", "fridays", "saturdays", "sundays"
        ),
        "season": {"spring": 3, "summer": 6, "fall": 9, "autumn": 9, "winter": 12},
        "seasons": {"springs": 3, "summers": 6, "falls": 9, "autumns": 9, "winters": 12},
        "holiday": _HOLIDAYS,
        "holidays": {"christmases": Holiday.CHRISTMAS, "easters": Holiday.EASTER},
        "weekend": {"weekend": 0, "weekends": 0},
        "unit": {
            "minute": MINUTE,
            "minutes": MINUTE,
            "hour": HOUR,
            "hours": HOUR,
            "day": DAY,
            "days": DAY,
            "week": WEEK,
            "weeks": WEEK,
            "month": MONTH,
            "months": MONTH,
            "quarter": QUARTER,
            "quarters": QUARTER,
            "year": YEAR,
            "years": YEAR,
            "min": MINUTE,
            "mins": MINUTE,
            "hr": HOUR,
            "hrs": HOUR,
            "wk": WEEK,
            "wks": WEEK,
            "yr": YEAR,
            "yrs": YEAR,
        },
        "period": {"week": WEEK, "month": MONTH, "quarter": QUARTER, "year": YEAR},
        "number": _NUMBERS,
        "which": {"last": -1, "past": -1, "previous": -1, "this": 0, "this past": -1},
        "near": {
            "the day before yesterday": -2,
            "the night before last": -2,
            "just now": 0,
            "yesterday": -1,
            "last night": -1,
            "today": 0,
            "tonight": 0,
            "this morning": 0,
            "this afternoon": 0,
            "this evening": 0,
        },
        "week": {"the week before last": -2, "last week": -1, "this week": 0, "next week": 1},
        "years": {
            "the year before last": -2,
            "last year": -1,
            "this year": 0,
            "next year": 1,
            "the beginning of the year": 0,
            "the start of the year": 0,
        },
        "half": numbered("first half|h1", "second half|h2", start=1),
        "relative_month": {"last month": -1, "this month": 0},
        "quarter": numbered(
            "q1|first quarter|1st quarter",
            "q2|second quarter|2nd quarter",
            "q3|third quarter|3rd quarter",
            "q4|fourth quarter|4th quarter",
            start=1,
        ),
        "vague": {
            "recently": 30,
            "lately": 30,
            "of late": 30,
            "not long ago": 30,
            "the other day": 14,
            "the other night": 14,
            "the other week": 30,
        },
        "half_year": {"half a year ago": 6},
        "half_day": {"am": 0, "a.m.": 0, "pm": 12, "p.m.": 12},
        "clock_word": {"noon": 12, "midday": 12, "midnight": 0},
    },
    rules=(
        Rule("{month} " + _DAY + _OR_NOT, readers.day_of_month),
        Rule("(?:the )?" + _DAY + " (?:of )?{month}" + _NO_VERB + _OR_NOT, readers.day_of_month),
        Rule("(?:on )?{weekday},? (?:the )?{month} " + _DAY + _OR_NOT, readers.day_of_month),
        Rule(
            "(?:on )?{weekday},? (?:the )?" + _DAY + " (?:of )?{month}" + _OR_NOT,
            readers.day_of_month,
        ),
        Rule("(?:the )?" + _DAY + " of {relative_month}", readers.day_of_relative_month),
        Rule(
            _DAY + f"(?:{_TO}| and (?:the )?)" + _DAY2 + " (?:of )?{month}" + _OR_NOT,
            readers.days_of_month,
        ),
        Rule("{month} " + _DAY + _TO + _DAY2 + _OR_NOT, readers.days_of_month),
        Rule("between {month} " + _DAY + " and " + _DAY2 + _OR_NOT, readers.days_of_month),
        Rule("{month}" + _YEAR, readers.month),
        Rule("{years},? (?:in |around )?" + f"{_PART}?" + "{month}", readers.month),
        Rule(_IN + "{month}" + _OR_NOT, readers.month),
        Rule("{which} {month}" + _AT_END, readers.month),
        Rule("(?:the )?{month} before last", readers.month, which=-2),
        Rule("{month}", readers.month, weak=True),
        Rule(
            "(?:in|during|throughout|back in|year|(?:beginning|start|middle|end|rest|half|part) of)"
            " {year}" + NOT_A_COUNT,
            readers.year,
        ),
        Rule("(?<![./-]){year}" + NOT_A_COUNT, readers.year, weak=True),
        Rule(_IN + "{season}" + _OR_NOT + "(?! of )", readers.season),
        Rule("(?:the )?{season}" + _YEAR, readers.season),
        Rule("{which} {season}", readers.season),
        Rule("(?:the )?{season} before last", readers.season, which=-2),
        Rule("{number} {seasons} (?:ago|back)", readers.season),
        # "Before the fall" does not refer to the season.
        Rule("(?!fall){season}", readers.season, weak=True),
        Rule("(?<!before the )(?<!after the )(?P<season>fall)", readers.season, weak=True),
        Rule(
            "(?:at|on|over|around|during) {holiday}" + _OR_NOT + "(?! (?:island|eggs?))",
            readers.holiday,
        ),
        Rule("{holiday}" + _YEAR, readers.holiday),
        Rule("{which} {holiday}", readers.holiday),
        Rule("(?:the )?{holiday} before last", readers.holiday, which=-2),
        Rule("{number} {holidays} (?:ago|back)", readers.holiday),
        Rule("{holiday}", readers.holiday, weak=True),
        Rule("(?:earlier )?{near}", readers.near_day),
        Rule("on {weekday}(?: (?:morning|afternoon|evening|night))?", readers.weekday),
        Rule(
            "(?<!my )(?<!the )(?<!every )(?<!next )(?<!a ){weekday}"
            " (?:morning|afternoon|evening|night)",
            readers.weekday,
        ),
        Rule("{which} {weekday}", readers.weekday),
        Rule("(?:the )?{weekday} before last", readers.weekday, which=-2),
        Rule("{number} {weekdays} (?:ago|back)", readers.weekday),
        Rule("(?:on )?{weekday},? (?:of )?{week}", readers.weekday_of_week),
        Rule("{week},? (?:on )?{weekday}", readers.weekday_of_week),
        Rule("(?:on |the )?{weekday} {number} weeks? (?:ago|back)", readers.weekday_weeks_ago),
        Rule("{number} weeks? ago(?:,| on)? {weekday}", readers.weekday_weeks_ago),
        Rule("{weekday}", readers.weekday, weak=True),
        Rule("{which} {weekend}", readers.weekend),
        Rule("(?:over|during) the {weekend}", readers.weekend),
        Rule("the {weekend} before last", readers.weekend, which=-2),
        Rule("{number} {weekend} (?:ago|back)", readers.weekend),
        Rule("(?:last|previous) {period}", readers.period, which=-1),
        Rule("(?:earlier |later )?this {period}", readers.period, which=0),
        Rule("the {period} before last", readers.period, which=-2),
        Rule("{number}(?: (?:or|to) | ?- ?){number2} {unit} (?:ago|back|earlier)", readers.ago),
        Rule("{number} {unit} (?:ago|back|earlier)", readers.ago),
        Rule("{half_year}", readers.half_year_ago),
        Rule("(?:last|past|previous) {number} {unit}(?! of )", readers.last_so_many),
        Rule("past {unit}", readers.last_so_many),
        Rule("{years}", readers.relative_year),
        Rule("{vague}", readers.vague),
        Rule("(?:in|during)(?: the)? {quarter}" + _OR_NOT, readers.quarter),
        Rule("(?:the )?{quarter}" + _YEAR, readers.quarter),
        Rule("(?:in )?{year}[ -]?{quarter}", readers.quarter),
        Rule("{quarter}", readers.quarter, weak=True),
        Rule("(?:in |during )?(?:the )?{half}" + _YEAR, readers.half_year),
    ),
    openings=(
        Opening(Side.SINCE, f"since{_FILLERS}"),
        Opening(Side.SINCE, f"(?:from|starting|as of){_FILLERS}", "(?:on|onwards?)"),
        Opening(Side.AFTER, f"after{_FILLERS}"),
        Opening(Side.BEFORE, f"(?:before|prior to){_FILLERS}"),
        Opening(Side.UNTIL, f"(?:until|till|up to){_FILLERS}"),
    ),
    connections=(
        RangeWords(
            f"(?:between|from){_FILLERS}", f"(?:and|to|until|till|through|thru|up to|-){_FILLERS}"
        ),
        RangeWords("", f"(?:to|until|till|through|thru|-){_FILLERS}"),
    ),
    clocks=(
        "(?:(?:at|around|about) )?{hour}(?::{minute})? ?{half_day}",
        "(?:(?:at|around|about) )?{hour}:{minute}",
        "(?:(?:at|around|about) )?{hour} o'clock",
        "(?:at|around|about) {clock_word}",
    ),
)
