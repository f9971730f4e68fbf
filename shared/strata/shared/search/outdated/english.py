"""Patterns of English statements of facts, and of statements that a fact has changed."""

from strata.shared.search.outdated.language_rules import LanguageRules, Predicate, Value

_HAVE = r"(?:have |has )?"

ENGLISH = LanguageRules(
    code="en",
    speaker="i|we",
    owned="the|my|our",
    others="his|her|their|your|its",
    rewritten=(
        (r"\b(i|we|you|they)'(?:m|re)\b|\b(we|you|they) are\b", r"\1\2 am"),
        (r"\b(i|we|you|they)'ve\b", r"\1 have"),
        (r"\b(it|he|she|that|there|what|who)'s\b", r"\1 is"),
        (r"\b(do|does|did|is|are|was|were|has|have|had|would|could|should)n't\b", r"\1 not"),
        (r"\bcan't\b|\bcannot\b", "can not"),
        (r"\bany more\b", "anymore"),
        (r", which (?=ha(?:s|ve)\b)", " "),
    ),
    passed_over=(
        r"now|currently|nowadays|at the moment|right now|finally|still|actually|by the way|btw|just"
        r"|recently|already|from now on|these days|instead|well|ok|okay|so|yes|new|really|quite"
        r"|turns out|officially|all"
    ),
    current=(
        r"now|currently|nowadays|at the moment|from now on|these days|instead|new|anymore|no longer"
        r"|turns out|since (?:last|this|the new|(?:mon|tues|wednes|thurs|fri)day)|as of|starting"
        r"|from next|they changed"
    ),
    unsure=(
        r"if|maybe|perhaps|might|may be|would|i'd|could|should|wants?|wish|hop(?:e|es|ing)"
        r"|think(?:ing)?|planning|consider(?:ing)?|plans? to|going to|almost|nearly|imagine|unless"
        r"|whether|someday|also|too|as well|besides|another|second|both|used to|was|were|had"
        r"|formerly|previously|back then|until|today|yesterday|tonight|tomorrow|last night"
        r"|this (?:morning|afternoon|evening)|example|let's|did|ever|once"
    ),
    qualified=(
        r"(?:on |every )?(?:mon|tues|wednes|thurs|fri|satur|sun)days?|weekends?|weekdays?|during"
        r"|in (?:the )?(?:morning|afternoon|evening|summer|winter|spring|autumn)s?|sometimes"
        r"|part-time|at night|when|while"
    ),
    negated=r"not|never|no",
    properties=(
        r"\w+_\w+|password|passcode|passphrase|pin|code|number|address|e-?mail|rent|salary|wage|budget"
        r"|deadline|due date|price|fee|age|weight|height|username|nickname|job|profession"
        r"|occupation|employer|hometown|bank|provider|time ?zone|shift|size|version|status"
        r"|preferred \w+|preference|favou?rite \w+|currency|diet|major|limit|target|quota"
    ),
    roles=(
        r"boss|manager|landlord|landlady|supervisor|leader?|head|director|teacher|tutor|coach"
        r"|trainer|doctor|gp|dentist|physiotherapist|therapist|physician|lawyer|accountant"
        r"|assistant|secretary|captain|president|chair|owner"
    ),
    no_value=(
        r"(?:too|very|not|on|in|at|for|a bit|almost|gone|wrong|bad|good|fine|great|high|low|long"
        r"|short|due|of|from|to|with|about|as|because|being|getting|broken|lost|ready|here|there"
        r"|like|what|that|how|why|where|when|who|\w+ing|\w+ed|more|less|much|up|down|safe|full)\b"
    ),
    value_end=(
        r"and|but|or|because|since|which|who|that|with|near|last|this|next|when|while|for|after"
        r"|before|so|in|at|on|from|where|these|every|per|until|to|if|is|are|has|have"
    ),
    predicates=(
        Predicate(
            "is",
            _HAVE + r"(?:raised|increased|cut|lowered|reduced|changed|moved|pushed|postponed"
            r"|rescheduled|extended) (?P<s>(?!to |from )[\w' ]+?) (?:up |down |back )?to (?P<v>.+)",
            changed=True,
        ),
        Predicate("is", _HAVE + r"set (?P<s>[\w' ]+?) to (?P<v>.+)"),
        Predicate(
            "home", r"(?:lives?|living|am based|is based) (?:on .+ |in an? .+ )?in", Value.PLACE
        ),
        Predicate(
            "home",
            _HAVE + r"(?:moved|relocated)(?: back)?(?: from \w+)? to",
            Value.PLACE,
            changed=True,
        ),
        Predicate("employer", r"(?:works?|working) (?:at|for)", Value.ANY),
        Predicate(
            "employer",
            _HAVE + r"(?:started(?: working| work)? (?:at|for)|joined)",
            Value.ANY,
            changed=True,
        ),
        Predicate(
            "relationship",
            r"am(?= (?:happily )?(?:single|married|engaged|divorced|widowed))",
            Value.ANY,
        ),
        Predicate("relationship", r"got(?= (?:married|engaged|divorced))", Value.ANY, changed=True),
        Predicate("profession", r"(?:works?|working) as", Value.ANY),
        Predicate("studies", r"study|studies|studying", Value.ANY),
        Predicate("vehicle", r"drives?", Value.ANY),
        Predicate("school", r"go(?:es)? to", Value.PLACE),
        Predicate("weight", r"weighs?"),
        Predicate(
            "is",
            _HAVE + r"(?:been |was |is |got )?(?:gone up|gone down|went up|went down|goes up"
            r"|goes down|risen|rose|fell|dropped|increased|decreased|improved|grown|climbed|raised"
            r"|lowered|reduced|moved|postponed"
            r"|pushed(?: back)?|rescheduled|brought forward|changed|shifted|delayed|put back)"
            r" (?:to|until)",
            changed=True,
        ),
        Predicate("costs", r"costs?"),
        Predicate("starts", r"(?:starts?|begins?) (?:at|on)"),
        Predicate("opens", r"opens? (?:at|on)"),
        Predicate("closes", r"closes? (?:at|on)"),
        Predicate("leaves", r"(?:leaves?|departs?) (?:at|on)"),
        Predicate("runs", r"(?:runs?|listens?) on"),
        Predicate("meets", r"meets? (?:at|on|in)"),
        Predicate("is", r"(?:is|are|am)(?: called| named| left with| planned for)?"),
        Predicate("prefers", r"prefers?", Value.ANY),
    ),
    ended=(
        r"^(?P<s>.*?)\bno longer (?P<o>.+)",
        r"^ no more (?P<o>.+)",
        r"^(?P<s>.*?)\b(?:do|does|am|is|are|can) not (?P<o>.+?) anymore",
        r"^(?P<s>.*?)\b(?:stopped|quit|given up|gave up) (?P<o>(?!(?:up|down|off|by|at|to)\b)\w.*)",
        r"^(?P<s>.*?)\b(?:dropped|cancelled|sold) (?P<o>(?!(?:off|by|in|out|into)\b)\w.*)",
    ),
    resumed=(
        r"^(?P<s>.*?(?:\bi|\bwe|\bhe|\bshe))? ?(?:am |is |can )?(?P<o>(?:[\w']+ ){1,5})again\b",
    ),
    replaced=(
        r"\b(?:switched|changed|moved|migrated|gone|went|upgraded) from (?P<o>.+?) to (?P<v>.+)",
        r"^ (?P<v>[\w ]+) took over from (?P<o>.+?)(?: as .+)?$",
    ),
    vague=(
        "go|goes|going|come|comes|see|know|get|make|take|find|want|need|feel|look|work|works"
        "|do|be|have|use"
    ),
    trailing=(
        r"(?:\w+ )?(?:days?|weeks?|months?|years?) ago|last \w+|in \d{4}|because .*|for good"
        r"|completely|years ago|at last"
    ),
    weekdays=(
        "monday|mondays",
        "tuesday|tuesdays",
        "wednesday|wednesdays",
        "thursday|thursdays",
        "friday|fridays",
        "saturday|saturdays",
        "sunday|sundays",
    ),
    months=(
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
    ),
    hour=(
        r"\b(\d{1,2})[:.](\d\d)(?: ?([ap]m))?\b|\b(\d{1,2}) ?([ap]m)\b"
        r"|\bat (\d{1,2})\b(?! ?\w*%)"
    ),
)
