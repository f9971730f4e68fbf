"""Patterns of German statements of facts, and of statements that a fact has changed."""

from strata.shared.search.outdated.language_rules import LanguageRules, Predicate, Value

GERMAN = LanguageRules(
    code="de",
    speaker="ich|wir",
    others="sein|seine|seiner|ihr|ihre|ihrer|dein|deine|euer|eure",
    rewritten=((r"\u00df", "ss"),),
    passed_over=(
        r"jetzt|nun|inzwischen|mittlerweile|derzeit|zurzeit|im moment|momentan|aktuell|endlich"
        r"|ubrigens|gerade|kurzlich|neuerdings|ab sofort|von nun an|eigentlich|also|ja|ok|okay"
        r"|neuer|neue|neues|neuen|ab (?:januar|februar|marz|april|mai|juni|juli|august|september"
        r"|oktober|november|dezember)|seit (?:kurzem|montag|januar|februar|marz|april|mai|juni"
        r"|juli|august|september|oktober|november|dezember)|einen|eine|ein|einem|einer"
    ),
    current=(
        r"jetzt|nun|inzwischen|mittlerweile|derzeit|zurzeit|momentan|neuerdings|ab sofort"
        r"|von nun an|neuer|neue|neues|neuen|stattdessen|nicht mehr"
        r"|ab (?:januar|februar|marz|april|mai|juni"
        r"|juli|august|september|oktober|november|dezember|morgen|montag)|seit (?:kurzem|montag"
        r"|januar|februar|marz|april|mai|juni|juli|august|september|oktober|november|dezember)"
    ),
    unsure=(
        r"wenn|falls|vielleicht|konnte|sollte|mochte|will|wollen|hoffe|hoffentlich|denke"
        r"|uberlege|plane|fast|beinahe|auch|ausserdem|zusatzlich|nebenbei|zweite[rsn]?|beide"
        r"|fruher|war|waren|hatte|hatten|damals|bis|heute|gestern|wunsche|traume|ob"
    ),
    qualified=(
        r"(?:mon|diens|donners|frei|sams|sonn)tags?|mittwochs?|wochenende|wochenenden|abends"
        r"|morgens|nachts|manchmal|teilzeit|im (?:sommer|winter|fruhling|herbst)|wahrend"
    ),
    negated="nicht|kein|keine|keinen|keinem|keiner|nie|nichts",
    properties=(
        r"passwort|kennwort|pin|code|\w*nummer|adresse|e-?mail|\w*miete|gehalt|lohn|budget|frist"
        r"|abgabetermin|preis|gebuhr|beitrag|alter|gewicht|grosse|spitzname|beruf|arbeitgeber"
        r"|heimatstadt|bank|anbieter|zeitzone|schicht|version|status|lieblings\w+|wahrung|limit"
        r"|ziel|auto"
    ),
    roles=(
        r"chef|chefin|vermieter|vermieterin|hausmeister|hausmeisterin|leiter|leiterin|lehrer"
        r"|lehrerin|trainer|trainerin|arzt|arztin|hausarzt|hausarztin|zahnarzt|zahnarztin"
        r"|anwalt|anwaltin|direktor|direktorin|vorgesetzter|vorgesetzte|betreuer|betreuerin"
    ),
    no_value=(
        r"(?:zu|sehr|nicht|im|in|am|bei|fur|fast|weg|falsch|schlecht|gut|hoch|niedrig|lang|kurz"
        r"|von|aus|mit|als|weil|dass|kaputt|fertig|da|dort|hier|wie|was|mehr|weniger|schon|noch)\b"
    ),
    value_end=(
        r"und|aber|oder|weil|seit|mit|bei|nahe|als|fur|nach|vor|in|im|am|an|auf|von|wo|der|die|das"
        r"|gleich|pro|bis|zu|ist|sind|hat|habe|umgezogen|gezogen|verschoben|erhoht"
    ),
    predicates=(
        Predicate("home", r"(?:wohne|wohnen|wohnt|lebe|leben|lebt) (?:.+ )?in", Value.PLACE),
        Predicate(
            "home",
            r"(?:bin|sind|ist) (?:.+ )?nach (?P<v>\w+) (?:um)?gezogen",
            Value.PLACE,
            changed=True,
        ),
        Predicate("employer", r"(?:arbeite|arbeiten|arbeitet) (?:bei|fur)", Value.ANY),
        Predicate("profession", r"(?:arbeite|arbeitet) als", Value.ANY),
        Predicate("studies", r"(?:studiere|studiert)", Value.ANY),
        Predicate("vehicle", r"(?:fahre|fahrt)(?: alten| alte| altes)?", Value.ANY),
        Predicate(
            "relationship",
            r"bin(?= (?:single|verheiratet|verlobt|geschieden|verwitwet))",
            Value.ANY,
        ),
        Predicate("weight", r"(?:wiege|wiegt)"),
        Predicate(
            "is",
            r"(?:wurde|wird|ist|haben|habe|hat) (?:(?P<s>[\w ]+?) )?auf (?P<v>.+) (?:verschoben"
            r"|verlegt|erhoht|gesenkt|geandert|verkurzt|verlangert|angehoben|gestiegen|gesunken)",
            changed=True,
        ),
        Predicate("is", r"(?:steigt|sinkt|steigen|sinken) auf", changed=True),
        Predicate("costs", r"(?:kostet|kosten)"),
        Predicate("starts", r"(?:beginnt|startet|fangt) (?:um|am)"),
        Predicate("opens", r"offnet (?:um|am)"),
        Predicate("closes", r"schliesst (?:um|am)"),
        Predicate("leaves", r"(?:fahrt|geht) (?:um|am)"),
        Predicate("runs", r"lauft auf"),
        Predicate("lies", r"liegt bei"),
        Predicate("is", r"(?:ist|sind|heisst|heissen|lautet|betragt)"),
        Predicate("prefers", r"bevorzugt", Value.ANY),
    ),
    ended=(
        r"^ (?P<o>\w+ (?:.+ )?)nicht mehr(?P<o2>.*) *$",
        r"^ (?P<o>.+? )keine?n? (?P<o2>.+?) mehr\b",
        r"^ (?:mit )?(?P<o>[\w ]+?) (?:habe|haben) (?:ich|wir) (?:aufgehort|aufgegeben|verkauft)",
        (
            r"^(?P<s>.*?\b(?:ich|wir)) (?:habe|haben) (?:mit )?(?P<o>.+?) (?:aufgehort|aufgegeben"
            r"|verkauft)"
        ),
    ),
    resumed=(r"^ (?P<o>.*?\w+) wieder (?P<o2>.+) *$",),
    replaced=(r"\bvon (?P<o>.+?) (?:auf|zu) (?P<v>.+?) (?:umgestiegen|gewechselt|umgestellt)",),
    vague=(
        "gehe|geht|gehen|komme|kommt|sehe|sieht|weiss|mache|macht|finde|findet|brauche|will"
        "|kann|konnen|muss|darf|habe|hat|bin|ist|ich|wir"
    ),
    trailing=(
        r"vor (?:\w+ )?(?:tagen|wochen|monaten|jahren)|letzte\w* \w+|im jahr \d{4}|weil .*"
        r"|ganz|endgultig"
    ),
    weekdays=(
        "montag|montags",
        "dienstag|dienstags",
        "mittwoch|mittwochs",
        "donnerstag|donnerstags",
        "freitag|freitags",
        "samstag|samstags|sonnabend",
        "sonntag|sonntags",
    ),
    months=(
        "januar",
        "februar",
        "marz",
        "april",
        "mai",
        "juni",
        "juli",
        "august",
        "september",
        "oktober",
        "november",
        "dezember",
    ),
    hour=r"\b(\d{1,2})[:.](\d\d)(?: ?uhr)?\b|\b(\d{1,2}) ?uhr\b|\bum (\d{1,2})\b",
)
