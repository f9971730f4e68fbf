"""French expressions of time."""

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
    "un": 1, "une": 1, "deux": 2, "trois": 3, "quatre": 4, "cinq": 5, "six": 6, "sept": 7,
    "huit": 8, "neuf": 9, "dix": 10, "onze": 11, "douze": 12, "quinze": 15, "vingt": 20,
    "trente": 30, "quelques": FEW, "plusieurs": FEW,
}  # fmt: skip
_HOLIDAYS = {
    "noel": Holiday.CHRISTMAS, "le reveillon de noel": Holiday.CHRISTMAS_EVE,
    "la saint-sylvestre": Holiday.NEW_YEARS_EVE, "la saint sylvestre": Holiday.NEW_YEARS_EVE,
    "reveillon du nouvel an": Holiday.NEW_YEARS_EVE, "le nouvel an": Holiday.NEW_YEARS_DAY,
    "nouvel an": Holiday.NEW_YEARS_DAY, "le jour de l'an": Holiday.NEW_YEARS_DAY,
    "paques": Holiday.EASTER, "la pentecote": Holiday.PENTECOST, "pentecote": Holiday.PENTECOST,
    "halloween": Holiday.HALLOWEEN, "la saint-valentin": Holiday.VALENTINES_DAY,
    "la saint valentin": Holiday.VALENTINES_DAY, "la fete du travail": Holiday.LABOUR_DAY,
}  # fmt: skip

_LAST = "(?:derniere?|passee?)"
_BEFORE_LAST = "avant[- ]derniere?"
_YEAR = "(?: ?, ?| )(?:(?:de|en|d') ?)?(?:(?:de )?l'annee )?(?:{year}|{years})"
_OR_NOT = f"(?:{_YEAR})?"
_PART = "(?:(?:(?:le |au )?(?:debut|milieu)|(?:la |a la )?(?:fin|mi))(?: du mois)?(?: de| d'|-)? ?)"
_DAY = "{day}(?:er)?"
_IN = (
    "(?:(?:en|au mois de|au mois d'|le mois de|le mois d'|courant|pendant|durant)(?: le mois de)?"
    f" ?{_PART}?|{_PART})"
)
_FILLERS = "(?: le| la| l'| les| au| aux| en| du| de| debut| mi| fin| environ)*"
# Beside a weekday: "every Friday", "next Friday".
_NOT_ONCE = r"(?<!le )(?<!du )(?<!les )(?<!chaque )(?<!des )(?<!un )(?<!prochain )(?<!ce )"

FRENCH = Language(
    code="fr",
    lexicons={
        "month": numbered(
            "janvier|janv",
            "fevrier|fevr",
            "mars",
            "avril|avr",
            "mai",
            "juin",
            "juillet|juil",
            "aout",
            "septembre",
            "octobre|oct",
            "novembre|nov",
            "decembre|dec",
            start=1,
        ),
        "weekday": numbered(
            "lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche"
        ),
        "weekdays": numbered(
            "lundis", "mardis", "mercredis", "jeudis", "vendredis", "samedis", "dimanches"
        ),
        "season": {"printemps": 3, "ete": 6, "automne": 9, "hiver": 12},
        "seasons": {"printemps": 3, "etes": 6, "automnes": 9, "hivers": 12},
        "holiday": _HOLIDAYS,
        "weekend": {"week-end": 0, "weekend": 0, "week-ends": 0, "weekends": 0},
        "unit": {
            "minute": MINUTE,
            "minutes": MINUTE,
            "heure": HOUR,
            "heures": HOUR,
            "jour": DAY,
            "jours": DAY,
            "semaine": WEEK,
            "semaines": WEEK,
            "mois": MONTH,
            "trimestre": QUARTER,
            "trimestres": QUARTER,
            "an": YEAR,
            "ans": YEAR,
            "annee": YEAR,
            "annees": YEAR,
        },
        "period": {"semaine": WEEK, "mois": MONTH, "trimestre": QUARTER, "annee": YEAR, "an": YEAR},
        "number": _NUMBERS,
        "near": {
            "avant-hier": -2,
            "avant hier": -2,
            "hier soir": -1,
            "hier matin": -1,
            "la nuit derniere": -1,
            "hier": -1,
            "aujourd'hui": 0,
            "ce matin": 0,
            "ce soir": 0,
            "cet apres-midi": 0,
        },
        "week": {
            "la semaine derniere": -1,
            "la semaine passee": -1,
            "cette semaine": 0,
            "la semaine prochaine": 1,
            "semaine derniere": -1,
            "semaine prochaine": 1,
        },
        "years": {
            "l'annee derniere": -1,
            "l'annee passee": -1,
            "l'an dernier": -1,
            "l'an passe": -1,
            "annee derniere": -1,
            "an dernier": -1,
            "cette annee": 0,
            "l'annee prochaine": 1,
            "l'an prochain": 1,
            "annee prochaine": 1,
            "debut de l'annee": 0,
            "debut d'annee": 0,
        },
        "half": numbered(
            "premier semestre|1er semestre",
            "second semestre|deuxieme semestre|2e semestre",
            start=1,
        ),
        "relative_month": {
            "du mois dernier": -1,
            "du mois passe": -1,
            "de ce mois": 0,
            "du mois": 0,
        },
        "quarter": numbered(
            "t1|q1|premier trimestre|1er trimestre",
            "t2|q2|deuxieme trimestre|second trimestre|2e trimestre|2eme trimestre",
            "t3|q3|troisieme trimestre|3e trimestre|3eme trimestre",
            "t4|q4|quatrieme trimestre|4e trimestre|4eme trimestre",
            start=1,
        ),
        "vague": {
            "recemment": 30,
            "dernierement": 30,
            "ces derniers temps": 30,
            "ces derniers jours": 7,
            "ces dernieres semaines": 35,
            "ces derniers mois": 150,
            "l'autre jour": 14,
            "il y a peu": 30,
        },
        "half_day": {
            "du matin": 0,
            "de l'apres-midi": 12,
            "du soir": 12,
        },
        "clock_word": {"midi": 12, "minuit": 0},
    },
    rules=(
        Rule("(?:le )?" + _DAY + " {month}" + _OR_NOT, readers.day_of_month),
        Rule("(?:le )?{weekday} " + _DAY + " {month}" + _OR_NOT, readers.day_of_month),
        Rule("(?:le )?" + _DAY + " {relative_month}", readers.day_of_relative_month),
        Rule(_DAY + "(?: ?- ?| au | et (?:le )?){day2} {month}" + _OR_NOT, readers.days_of_month),
        Rule("(?:en )?{month}" + _YEAR, readers.month),
        Rule("{years},? (?:en )?{month}", readers.month),
        Rule(_IN + "{month}" + _OR_NOT, readers.month),
        Rule("(?:(?:le |au )?debut|(?:la |a la )?fin) (?:de )?{year}" + NOT_A_COUNT, readers.year),
        Rule("(?:en )?{month} " + _LAST, readers.month, which=-1),
        Rule("{month}", readers.month, weak=True),
        Rule(
            "(?:en|l'annee|annee|pendant) {year}" + NOT_A_COUNT,
            readers.year,
        ),
        Rule(r"(?<![./-]){year}" + NOT_A_COUNT, readers.year, weak=True),
        Rule(
            "(?:en|au|pendant l'|pendant le|durant l'|durant le) ?{season}" + _OR_NOT,
            readers.season,
        ),
        Rule("(?:l'|le )?{season}" + _YEAR, readers.season),
        Rule("(?:l'|le |en |au )?{season} " + _LAST, readers.season, which=-1),
        Rule("(?:l'|le )" + _BEFORE_LAST + " {season}", readers.season, which=-2),
        Rule("cet? {season}", readers.season, which=0),
        Rule("il y a {number} {seasons}", readers.season),
        Rule("(?<!j'ai )(?<!a )(?<!avez )(?<!ont ){season}", readers.season, weak=True),
        Rule("(?:a|pendant) {holiday}" + _OR_NOT, readers.holiday),
        Rule("{holiday}" + _YEAR, readers.holiday),
        Rule("(?:a )?{holiday} " + _LAST, readers.holiday, which=-1),
        Rule("{holiday}", readers.holiday, weak=True),
        # "Hier" is "here" in German.
        Rule(r"(?!hier(?!\w| soir| matin)){near}", readers.near_day),
        Rule("(?P<near>hier)", readers.near_day, only_likely=True),
        Rule(
            _NOT_ONCE + "{weekday}(?: soir| matin)?(?! prochain| qui vient| gras)", readers.weekday
        ),
        Rule("{weekday}", readers.weekday, weak=True),
        Rule("(?:le )?{weekday} " + _LAST, readers.weekday, which=-1),
        Rule("l'" + _BEFORE_LAST + " {weekday}", readers.weekday, which=-2),
        Rule("ce {weekday}", readers.weekday, which=0),
        Rule("il y a {number} {weekdays}", readers.weekday),
        Rule("(?:le )?{weekday} (?:de )?{week}", readers.weekday_of_week),
        Rule("{week},? (?:le )?{weekday}", readers.weekday_of_week),
        Rule("{weekday},? (?:d')?il y a {number} semaines?", readers.weekday_weeks_ago),
        Rule("il y a {number} semaines?,? (?:le )?{weekday}", readers.weekday_weeks_ago),
        Rule("(?:le )?{weekend} " + _LAST, readers.weekend, which=-1),
        Rule("l'" + _BEFORE_LAST + " {weekend}", readers.weekend, which=-2),
        Rule("ce {weekend}", readers.weekend, which=0),
        Rule("il y a {number} {weekend}", readers.weekend),
        Rule("(?:la |le |l')?{period} " + _LAST, readers.period, which=-1),
        Rule("(?:l'|la )" + _BEFORE_LAST + " {period}", readers.period, which=-2),
        Rule("(?:ce|cette) {period}(?! prochain)", readers.period, which=0),
        Rule("il y a {number}(?: (?:ou|a) | ?- ?|, ){number2} {unit}", readers.ago),
        Rule("il y a {number} {unit}(?! et demi)", readers.ago),
        Rule("(?:depuis|ces|les|des) {number} (?:dernier|derniere)s {unit}", readers.last_so_many),
        Rule("depuis {number} {unit}", readers.last_so_many),
        Rule("{years}", readers.relative_year),
        Rule("{vague}", readers.vague),
        Rule("(?:au|pendant le|en) {quarter}" + _OR_NOT, readers.quarter),
        Rule("(?:le )?{quarter}" + _YEAR, readers.quarter),
        Rule("{quarter}", readers.quarter, weak=True),
        Rule("(?:au |le )?{half}" + _YEAR, readers.half_year),
    ),
    openings=(
        Opening(Side.SINCE, f"depuis{_FILLERS}"),
        Opening(Side.SINCE, f"a partir (?:de|du|d'){_FILLERS}"),
        Opening(Side.AFTER, f"apres{_FILLERS}"),
        Opening(Side.BEFORE, f"avant{_FILLERS}"),
        Opening(Side.UNTIL, f"jusqu'(?:a|au|en|aux)?{_FILLERS}"),
    ),
    connections=(
        RangeWords(
            f"(?:entre|de|du|d'){_FILLERS}", f"(?:et|a|au|jusqu'a|jusqu'au|jusqu'en|-){_FILLERS}"
        ),
        RangeWords("", f"(?:-|jusqu'a|jusqu'en){_FILLERS}"),
    ),
    clocks=(
        "(?:(?:a|vers) )?{hour} ?(?:h|heures?) ?{minute}?(?: {half_day})?",
        "(?:(?:a|vers) )?{hour}:{minute}",
        "(?:a|vers) {clock_word}",
    ),
)
