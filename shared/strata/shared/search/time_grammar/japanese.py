"""Japanese expressions of time."""

from __future__ import annotations

from strata.shared.search.time_grammar import readers
from strata.shared.search.time_grammar.han_numerals import HAN_NUMERAL, MONTHS, parse_number
from strata.shared.search.time_grammar.holidays import Holiday
from strata.shared.search.time_grammar.rules import (
    DAY,
    FEW,
    HOUR,
    MINUTE,
    MONTH,
    QUARTER,
    WEEK,
    YEAR,
    Language,
    Opening,
    RangeWords,
    Rule,
    Side,
)

_WEEKDAYS = {
    f"{day}{suffix}": number
    for number, day in enumerate("月火水木金土日")
    for suffix in ("曜日", "曜")
}
_HOLIDAYS = {
    "クリスマス": Holiday.CHRISTMAS, "クリスマスイブ": Holiday.CHRISTMAS_EVE,
    "大晦日": Holiday.NEW_YEARS_EVE, "大みそか": Holiday.NEW_YEARS_EVE,
    "元日": Holiday.NEW_YEARS_DAY, "お正月": Holiday.JAPANESE_NEW_YEAR,
    "正月": Holiday.JAPANESE_NEW_YEAR, "イースター": Holiday.EASTER,
    "ハロウィン": Holiday.HALLOWEEN, "ハロウィーン": Holiday.HALLOWEEN,
    "バレンタイン": Holiday.VALENTINES_DAY, "バレンタインデー": Holiday.VALENTINES_DAY,
    "ゴールデンウィーク": Holiday.GOLDEN_WEEK, "gw": Holiday.GOLDEN_WEEK, "お盆": Holiday.OBON,
    "旧正月": Holiday.CHINESE_NEW_YEAR,
}  # fmt: skip

_YEAR = "(?:{year}年|{years})の?"
_NUMERAL = r"(?<![\d一二三四五六七八九十])"
# "毎週金曜日" (every Friday) and "来週の金曜日" (next Friday) are not past days.
_NOT_ONCE = "(?<!毎週)(?<!毎週の)(?<!来週)(?<!来週の)(?<!次の)(?<!今度の)(?<!毎)"

JAPANESE = Language(
    code="ja",
    lexicons={
        "month": MONTHS,
        "weekday": _WEEKDAYS,
        "season": {"春": 3, "夏": 6, "秋": 9, "冬": 12},
        "holiday": _HOLIDAYS,
        "unit": {
            "分": MINUTE,
            "時間": HOUR,
            "日": DAY,
            "日間": DAY,
            "週間": WEEK,
            "年": YEAR,
            "年間": YEAR,
            "か月": MONTH,
            "ヶ月": MONTH,
            "カ月": MONTH,
            "ヵ月": MONTH,
            "ケ月": MONTH,
            "箇月": MONTH,
            "か月間": MONTH,
            "ヶ月間": MONTH,
            "カ月間": MONTH,
        },
        "period": {
            "前四半期": QUARTER,
            "今四半期": QUARTER,
            "先月": MONTH,
            "先々月": MONTH,
            "今月": MONTH,
            "前月": MONTH,
        },
        "number": {"数": FEW},
        "half": {"前半": 1, "上半期": 1, "後半": 2, "下半期": 2},
        "relative_month": {"先々月": -2, "先月": -1, "今月": 0},
        "near": {
            "さきおととい": -3,
            "一昨々日": -3,
            "一昨日": -2,
            "おととい": -2,
            "昨日": -1,
            "きのう": -1,
            "昨夜": -1,
            "昨晩": -1,
            "ゆうべ": -1,
            "今日": 0,
            "今朝": 0,
            "今夜": 0,
            "今晩": 0,
            "本日": 0,
            "さっき": 0,
            "先ほど": 0,
        },
        "week": {
            "先々週": -2,
            "先週": -1,
            "前の週": -1,
            "今週": 0,
            "来週": 1,
            "再来週": 2,
        },
        "years": {
            "一昨年": -2,
            "おととし": -2,
            "去年": -1,
            "昨年": -1,
            "今年": 0,
            "ことし": 0,
            "来年": 1,
            "再来年": 2,
        },
        "quarter": {
            name: number
            for number, kanji in enumerate("一二三四", start=1)
            for name in (f"q{number}", f"第{number}四半期", f"第{kanji}四半期")
        },
        "vague": {
            "最近": 30,
            "このところ": 30,
            "近頃": 30,
            "近ごろ": 30,
            "先日": 14,
            "この間": 14,
            "こないだ": 14,
            "この前": 14,
            "少し前": 30,
        },
        "half_year": {"半年前": 6, "半年ほど前": 6},
        "half_day": {"午前": 0, "朝": 0, "午後": 12, "夕方": 12, "夜": 12},
    },
    rules=(
        Rule(rf"{_NUMERAL}(?:{_YEAR})?" + "{month}{day}日", readers.day_of_month),
        Rule(
            rf"{_NUMERAL}(?:{_YEAR})?" + "{month}{day}日?(?:から|-|~|と){day2}日(?:まで)?",
            readers.days_of_month,
        ),
        Rule(rf"{_NUMERAL}(?:{_YEAR})?" + "{month}(?!間)", readers.month),
        Rule("{relative_month}の?{day}日", readers.day_of_relative_month),
        Rule("{year}年?(?:から|-|~){year2}年(?:まで)?", readers.years),
        Rule("{year}年(?![間代度生前])", readers.year),
        Rule("{year}年", readers.year, weak=True),
        Rule(_YEAR + "{season}(?!休み)", readers.season),
        Rule("この{season}", readers.season, which=0),
        Rule(_YEAR + "{holiday}", readers.holiday),
        Rule("(?:この)?前の{holiday}", readers.holiday, which=-1),
        Rule("この{holiday}", readers.holiday, which=0),
        Rule("{holiday}", readers.holiday, weak=True),
        Rule("{near}", readers.near_day),
        Rule(_NOT_ONCE + "{weekday}(?!日|から|まで|-|~|大工)", readers.weekday),
        Rule(_NOT_ONCE + "{weekday}(?!日|大工)", readers.weekday, weak=True),
        Rule("(?:この)?前の{weekday}", readers.weekday, which=-1),
        Rule("{week}の?{weekday}", readers.weekday_of_week),
        Rule("{number}週間前の{weekday}", readers.weekday_weeks_ago),
        Rule("先週(?:の週)?末", readers.weekend, which=-1),
        Rule("先々週(?:の週)?末", readers.weekend, which=-2),
        Rule("(?:今週|この週)(?:の週)?末", readers.weekend, which=0),
        Rule("{week}(?!(?:の週)?末)", readers.week),
        Rule("(?P<period>先月|前月|前四半期)", readers.period, which=-1),
        Rule("(?P<period>先々月)", readers.period, which=-2),
        Rule("(?P<period>今月|今四半期)", readers.period, which=0),
        Rule("{years}(?!度)", readers.relative_year),
        Rule(r"(?<!\d){number}[,・]?{number2}{unit}(?:ほど|くらい|ぐらい)?前", readers.ago),
        Rule(_NUMERAL + "{number}{unit}(?:ほど|くらい|ぐらい|も)?前", readers.ago),
        Rule("{half_year}", readers.half_year_ago),
        Rule("(?:過去|直近|最近|ここ|この)の?{number}{unit}", readers.last_so_many),
        Rule("{vague}", readers.vague),
        Rule("(?<![a-z])(?:" + _YEAR + ")?{quarter}(?![0-9])", readers.quarter),
        Rule(_YEAR + "{half}", readers.half_year),
    ),
    openings=(
        Opening(Side.SINCE, "", "(?:以来|以降|から)"),
        Opening(Side.AFTER, "", "(?:の後|のあと|後)"),
        Opening(Side.BEFORE, "", "(?:より前|の前|以前|前)"),
        Opening(Side.UNTIL, "", "まで"),
    ),
    connections=(
        RangeWords("", "から", "(?:まで|にかけて)?"),
        RangeWords("", "(?:-|~)"),
        RangeWords("", "と", "の間"),
    ),
    clocks=(
        "の?{half_day}{hour}(?:時|:)(?:{minute}分?|半)?",
        r"の?(?P<hour>1[3-9]|2[0-3])(?:時|:)(?:{minute}分?|半)?",
    ),
    numerals=HAN_NUMERAL,
    parse_number=parse_number,
    spaced=False,
)
