"""Chinese expressions of time; rules are written in simplified characters and read both."""

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
    f"{prefix}{day}": number
    for prefix in ("周", "星期", "礼拜")
    for number, days in enumerate(("一", "二", "三", "四", "五", "六", "日天"))
    for day in days
}
_HOLIDAYS = {
    "圣诞节": Holiday.CHRISTMAS, "圣诞": Holiday.CHRISTMAS, "平安夜": Holiday.CHRISTMAS_EVE,
    "跨年夜": Holiday.NEW_YEARS_EVE, "元旦": Holiday.NEW_YEARS_DAY, "复活节": Holiday.EASTER,
    "万圣节": Holiday.HALLOWEEN, "情人节": Holiday.VALENTINES_DAY, "感恩节": Holiday.THANKSGIVING,
    "劳动节": Holiday.LABOUR_DAY, "五一": Holiday.LABOUR_DAY,
    "国庆节": Holiday.CHINESE_NATIONAL_DAY, "国庆": Holiday.CHINESE_NATIONAL_DAY,
    "春节": Holiday.CHINESE_NEW_YEAR, "农历新年": Holiday.CHINESE_NEW_YEAR,
}  # fmt: skip

_YEAR = "(?:{year}年|{years})的?"
_DAY = "{day}[日号]"
# "一周一次" (once a week), "每周一" (every Monday) and "下周一" (next Monday) are not past days.
_NOT_ONCE = r"(?<![每下逢一二两三四五六七八九十几\d至到上这本个])(?<!上一)"
# "马上周末", "网上周边", "之前天气" and "以前年轻" have the characters of a time by chance.
_NOT_ON = "(?<![马晚早身路网线世天地车床桌手街海陆])"
_NOT_AFTER = "(?<![之以目从])"
_NO_COUNT = "(?![共起直次个些定样下般点回天件只本场杯趟遍])"

CHINESE = Language(
    code="zh",
    lexicons={
        "month": MONTHS,
        "weekday": _WEEKDAYS,
        "season": {
            "春天": 3,
            "春季": 3,
            "春": 3,
            "夏天": 6,
            "夏季": 6,
            "夏": 6,
            "秋天": 9,
            "秋季": 9,
            "秋": 9,
            "冬天": 12,
            "冬季": 12,
            "冬": 12,
        },
        "holiday": _HOLIDAYS,
        "unit": {
            "分钟": MINUTE,
            "小时": HOUR,
            "个小时": HOUR,
            "个钟头": HOUR,
            "天": DAY,
            "周": WEEK,
            "星期": WEEK,
            "个星期": WEEK,
            "礼拜": WEEK,
            "个礼拜": WEEK,
            "个月": MONTH,
            "个季度": QUARTER,
            "年": YEAR,
        },
        "period": {"月": MONTH, "季度": QUARTER},
        "number": {
            "几": FEW,
            "数": FEW,
            "好几": FEW,
            "一两": FEW,
            "两三": FEW,
            "三四": FEW,
            "三五": FEW,
        },
        "which": {
            "上": -1,
            "上个": -1,
            "上一个": -1,
            "上上": -2,
            "上上个": -2,
            "这": 0,
            "这个": 0,
            "本": 0,
        },
        "week": {
            "上": -1,
            "上个": -1,
            "上一": -1,
            "上上": -2,
            "上上个": -2,
            "这": 0,
            "这个": 0,
            "本": 0,
            "下": 1,
            "下个": 1,
            "下下": 2,
            "下下个": 2,
        },
        "half": {"上半年": 1, "下半年": 2},
        "relative_month": {"上个月": -1, "上月": -1, "这个月": 0, "本月": 0},
        "near": {
            "大前天": -3,
            "前天": -2,
            "前晚": -2,
            "昨天": -1,
            "昨日": -1,
            "昨晚": -1,
            "昨夜": -1,
            "今天": 0,
            "今日": 0,
            "今早": 0,
            "今晚": 0,
            "刚才": 0,
        },
        "years": {"大前年": -3, "前年": -2, "去年": -1, "今年": 0, "明年": 1, "后年": 2},
        "quarter": {
            f"{prefix}{name}{suffix}": number
            for number, names in enumerate(("一1", "二2", "三3", "四4"), start=1)
            for name in names
            for prefix, suffix in (("第", "季度"), ("", "季度"), ("q", ""))
        },
        "vague": {
            "近来": 30,
            "近期": 30,
            "不久前": 30,
            "前几天": 14,
            "前些天": 14,
            "前两天": 7,
            "前阵子": 60,
            "前段时间": 60,
            "前一阵": 60,
            "这阵子": 30,
            "这段时间": 30,
            "这些天": 14,
        },
        "half_year": {"半年前": 6, "半年以前": 6, "半年之前": 6},
        "half_day": {
            "早上": 0,
            "上午": 0,
            "凌晨": 0,
            "清晨": 0,
            "中午": 12,
            "下午": 12,
            "傍晚": 12,
            "晚上": 12,
        },
    },
    rules=(
        Rule(rf"(?<!\d)(?:{_YEAR})?" + "{month}" + _DAY, readers.day_of_month),
        Rule(
            rf"(?<!\d)(?:{_YEAR})?" + "{month}{day}[日号]?(?:到|至|-|~){day2}[日号]",
            readers.days_of_month,
        ),
        Rule(rf"(?<!\d)(?:{_YEAR})?" + "{month}份?", readers.month),
        Rule("{relative_month}的?" + _DAY, readers.day_of_relative_month),
        Rule("{year}年?(?:到|至|-|~){year2}年", readers.years),
        Rule("{year}年(?![级代前])", readers.year),
        Rule("{year}年", readers.year, weak=True),
        Rule(_YEAR + "{season}", readers.season),
        Rule("(?:上个|上一个){season}", readers.season, which=-1),
        Rule("(?:这个|今){season}", readers.season, which=0),
        Rule(_YEAR + "{holiday}(?:期间|那天|的时候|假期|前后)?", readers.holiday),
        Rule("(?:上个|上次|上一个){holiday}", readers.holiday, which=-1),
        Rule("{holiday}(?:期间|那天|的时候|假期|前后)", readers.holiday),
        Rule("{holiday}", readers.holiday, weak=True),
        Rule(_NOT_AFTER + "{near}", readers.near_day),
        Rule(
            _NOT_ONCE + "(?<![上这本个])(?<!上一){weekday}(?![至到~-])" + _NO_COUNT, readers.weekday
        ),
        Rule(_NOT_ON + "{week}{weekday}" + _NO_COUNT, readers.weekday_of_week),
        Rule(_NOT_ON + "{week}(?:周|星期|礼拜)的?{weekday}" + _NO_COUNT, readers.weekday_of_week),
        Rule("{number}(?:周|个星期|个礼拜)(?:以|之)?前的?{weekday}", readers.weekday_weeks_ago),
        Rule(_NOT_ON + "{which}周末", readers.weekend),
        Rule(_NOT_ON + "{week}(?:周|星期|礼拜)(?![末边围])", readers.week),
        Rule(_NOT_ON + "{which}{period}(?![球亮饼子经光])", readers.period),
        Rule(_NOT_AFTER + "{years}(?![级轻纪])", readers.relative_year),
        Rule(r"(?<!\d){number}多?{unit}(?:以|之)?前", readers.ago),
        Rule("{half_year}", readers.half_year_ago),
        Rule("(?:最近|过去|近|这|前(?![几些]))的?{number}{unit}(?!后)", readers.last_so_many),
        Rule(r"(?<!\d){number}{unit}以?来", readers.last_so_many),
        Rule("{vague}", readers.vague),
        Rule(
            "(?<![离距].)(?<![离距]..)(?<![离距]...)(?<![离距]....)(?<!靠)(?P<vague>最近)(?!的)",
            readers.vague,
        ),
        Rule("(?<![a-z])(?:" + _YEAR + ")?{quarter}(?![0-9])", readers.quarter),
        Rule("(?:" + _YEAR + ")?{half}", readers.half_year),
    ),
    openings=(
        Opening(Side.SINCE, "(?:自从|自|从)", "(?:以来|起|开始|以后)?"),
        Opening(Side.SINCE, "", "(?:以来|以后|起|开始)"),
        Opening(Side.AFTER, "", "(?:之后|后)"),
        Opening(Side.BEFORE, "", "(?:之前|以前|前)"),
        Opening(Side.UNTIL, "(?:直到|截至|截止到)", "(?:为止)?"),
        Opening(Side.UNTIL, "到?", "为止"),
    ),
    connections=(
        RangeWords("", "(?:到|至|-|~)", "(?:之间|期间|为止)?"),
        RangeWords("", "(?:和|与|跟|及)", "(?:之间|期间)"),
    ),
    clocks=(
        "的?{half_day}{hour}[点时:](?:{minute}分?|半)?",
        r"的?(?P<hour>1[3-9]|2[0-3])[点时:](?:{minute}分?|半)?",
    ),
    numerals=HAN_NUMERAL,
    parse_number=parse_number,
    spaced=False,
)
