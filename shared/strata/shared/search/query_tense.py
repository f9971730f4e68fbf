"""Determines whether a question asks about the present or about the past.

"Am I a smoker at the moment?" asks for the newest statement, "Where did I live before?" does not.
The result follows from the words and the verb, in six languages, without a model. It is a hint for
the ranking: if the words contradict each other or are ambiguous, it is `QueryTense.NONE`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache

from strata.shared.search.folded_text import fold, normalise
from strata.shared.search.languages import probable_languages


class QueryTense(Enum):
    """The time that a question asks about."""

    PRESENT = "present"
    """The question says that it is about the present: "now", "still", "current"."""
    PRESENT_TENSE = "present_tense"
    """The question is in the present tense and has no other hint: "Where do I live?"."""
    PAST = "past"
    """The question says that it is about the past: "used to", "originally", "my old address"."""
    NONE = "none"
    """The question is in the past or the future tense, says both, or is not a question."""


def query_tense(text: str) -> QueryTense:
    """Returns the time that a question asks about."""
    text = normalise(text)[:_ENOUGH]
    accented, folded = text.lower(), fold(text)
    languages = probable_languages(folded) or frozenset(_LANGUAGES)
    readings = [_read(code, accented, folded) for code in _LANGUAGES if code in languages]
    tenses = set(readings)
    for tense in (QueryTense.PRESENT, QueryTense.PAST):
        if tense in tenses:
            opposite = {QueryTense.PRESENT, QueryTense.PAST} - {tense}
            return QueryTense.NONE if opposite & tenses else tense
    # Without a word for it, all languages that the text can be of have to agree.
    return readings[0] if len(tenses) == 1 else QueryTense.NONE


# Questions are short; what follows is an attached text.
_ENOUGH = 500


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of a language, as regular expressions over folded text.

    Attributes:
        present: Words for the present.
        present_of_verb: Words for the present unless the verb is in the past: "Was I still ...".
        past: Words for the past.
        past_of_verb: Words for the past if the verb is in the past: "What was my first job?".
        past_verb: Verbs in the past.
        accented_past_verb: Verbs in the past that only an accent shows; not folded.
        present_verb: Verbs in the present, in a question.
        neutral: Words that are removed first, because they look like one of the others.
    """

    present: str
    present_of_verb: str
    past: str
    past_of_verb: str
    past_verb: str
    present_verb: str
    accented_past_verb: str = r"(?!)"
    neutral: str = r"(?!)"


_PRONOUN = "(?:i|we|you|he|she|it|they)"
_ENGLISH = _Words(
    neutral=(
        r"(?:can|could|would|will) you (?:please )?(?:tell|remind|show|give) (?:me|us)"
        r"|do you (?:still )?(?:remember|recall|know)|now and (?:then|again)|from now on"
        r"|(?:until|up to|by) now|just now|now that|now or never"
        r"|still (?:life|lives|waters?|images?|photos?)|(?:sit|stand|keep|stay) still"
        r"|(?:electric|electrical|ocean|direct|alternating|water|air) currents?|current (?:events"
        r"|affairs)|(?:(?<=am i )|(?<=are you )|(?<=am )|(?<=is )|(?<=are )|(?<=be )|(?<=get )"
        r"|(?<=got )|(?<=getting ))used to"
        r"|used to (?:describe|make|measure|refer|store|build)|first (?:names?|aid|floor|class|lady"
        r"|thing|person)|how old|years? old|year-old|months? old|old (?:town|age|friends?)"
    ),
    present=(
        r"at the moment|at this (?:moment|time|point)|right now|currently|current|nowadays|these"
        r" days|presently|at present|as of (?:now|today)|any ?more|no longer|not any longer|latest"
        r"|most recent|up[- ]to[- ]date|present[- ]day"
        r"|(?:do|does|don't|doesn't|am|is|are|isn't|aren't) (?:\w+ ){1,3}still"
    ),
    present_of_verb=r"now|still",
    past=(
        r"(?:did|didn't|did not) (?:\w+ ){1,3}use to|used to|previously|formerly|originally"
        r"|initially|back then|back in the days?|in the past|in the (?:good )?old days|early on"
        r"|(?:my|our|his|her|their|the user's) (?:old|former|previous|original|ex)"
        r"|(?:former|previous) (?:job|employer|address|home|company|boss|number|partner|owner)"
    ),
    past_of_verb=(
        r"first|at first|before|earlier|once|in the beginning|at the beginning|original|former"
        r"|previous|back when|when i was|as a (?:child|kid|boy|girl|student)|in my childhood"
    ),
    past_verb=(
        rf"did|didn't|was|wasn't|were|weren't|had|hadn't|{_PRONOUN} (?:said|told|went|got|bought"
        r"|met|saw|had|ate|drank|wrote|came|left|took|gave|made|thought|knew|felt|spent|sold"
        r"|chose|drove|flew|grew|kept|lost|paid|ran|sang|slept|spoke|taught|won|wore|began|broke"
        r"|brought|built|caught|fell|found|forgot|held|heard|hurt|moved|lived|worked|liked|smoked"
        rf"|mentioned)|(?<!am )(?<!is )(?<!are )(?<!not ){_PRONOUN} (?:\w+ly )?\w+[a-df-z]ed"
        rf"|(?:have|has|haven't|hasn't|have not) (?:{_PRONOUN}|my \w+|our \w+|anyone|someone)"
        rf"|{_PRONOUN}(?:'ve| have| has) (?:\w+ly |ever |never |already |just )?(?:been|had|done"
        r"|gone|seen|said|told|\w+ed)|last (?:time|night|week|month|year|summer|winter|spring)"
        r"|yesterday|ago|will|won't|tomorrow|next (?:week|month|year)|ever"
    ),
    present_verb=(
        r"am|is|are|isn't|aren't|do|does|don't|doesn't|(?:what|where|who|how|when)'s"
        rf"|(?:what|where|who|which|how|whether|if) {_PRONOUN} (?:am|have|live|work|like|eat|drive"
        r"|own|need|want|use|play|speak|study|drink|prefer)"
    ),
)
_GERMAN = _Words(
    neutral=(
        r"(?:kannst|konntest|wurdest) du (?:mir |uns )?(?:bitte )?(?:sagen|verraten|zeigen)"
        r"|weißt du(?: noch)?|erinnerst du dich(?: noch)?|sag mir|noch (?:ein\w* ?mal|mal|nie|etwas"
        r"|ein\w*|mehr|was|nicht)|weder|bis jetzt|von jetzt an|ab jetzt|gerade eben|nicht gerade"
        r"|gerade (?:linie|zahl\w*|strecke)|fruher oder spater|zur zeit (?:des|der|von)"
    ),
    present=(
        r"aktuell\w*|derzeit\w*|zurzeit|zur zeit|momentan\w*|im moment|im augenblick|gegenwartig\w*"
        r"|heutzutage|immer noch|noch immer|mittlerweile|inzwischen|nicht mehr|kein\w* \w+ mehr"
        r"|neueste\w*|jetzig\w*|heute noch"
    ),
    present_of_verb=(
        r"jetzt|gerade|nun|noch(?= *[?.!]*$)|noch(?= (?:in|im|bei|beim|mit|als|zu|zur|am|auf|an"
        r"|fur|so|meine?n?|den|dem|der|die|das|diese\w?|dort|hier|verheiratet|raucher|vegetarier)\b)"
    ),
    past=(
        r"damals|ursprunglich\w*|fruhere[rnsm]?|ehemal\w+|ehemals|einst(?:ig\w*)?|vorherige[rnsm]?"
        r"|(?:mein|meine|meinen|meiner|meinem|unser|unsere) (?:alte[rnsm]?|vorige[rnsm]?)"
        r"|in der vergangenheit"
    ),
    past_of_verb=(
        r"fruher|vorher|zuvor|davor|zuerst|anfangs|am anfang|zu beginn|zunachst|bevor|erste[rnsm]?"
        r"|als (?:ich|kind|jugendliche\w?|student\w*)"
    ),
    past_verb=(
        r"war|waren|warst|wart|hatte|hatten|hattest|wurde|wurden|wurdest|ging|kam|gab|hieß|hiess"
        r"|konnte|wollte|musste|sollte|durfte|wusste|dachte|brachte|fand|fuhr|schrieb|sprach|aß|trank"
        r"|sah|traf|nahm|blieb|zog|ließ|lief|schlief|trug|(?:wohn|sag|leb|mach|arbeitet|rauch|kauf"
        r"|spiel|lern|studier|erzahl|erwahn|hor|hass|lieb|brauch|koch|glaub|frag|fuhl)te[nst]*"
        # The perfect: a form of "haben" or "sein", and a participle at the end of a clause.
        r"|(?:habe|hab|hast|hat|haben|habt)\b[^?.!,]*\b(?:\w*ge\w{2,}(?:t|en)|(?:be|er|ver|ent|zer"
        r"|unter|uber)\w{2,}(?:t|en)|\w+iert)(?= *(?:[?.!,]|$))"
        r"|(?:bin|bist|ist|sind|seid)\b[^?.!,]*\b(?:gewesen|\w*gegangen|\w*gefahren|\w*gekommen"
        r"|geworden|\w*gezogen|\w*gereist|\w*geflogen|geblieben|gestorben|\w*gewachsen|\w*gelaufen"
        r"|passiert|gewandert|geschehen)"
        r"|wird|werde|werden|wirst|morgen|gestern|vorgestern|letzte\w* (?:woche|jahr|monat)"
    ),
    present_verb=(
        r"bin|bist|ist|sind|seid|habe|hab|hast|hat|haben|habt|mag|magst|mogen|kann|kannst|konnen"
        r"|will|willst|wollen|muss|musst|mussen|darf|durfen|soll|sollen|weiß|weiss|heiße|heiße?t"
        r"|heisst|wohnt|arbeitet|lebt|gehort|steht|liegt|kostet|gibt|fahrt|isst|trinkt|spricht|hast"
        r"|\w{2,}e ich|ich \w{2,}e|\w{2,}st du|\w{2,}en wir|\w{2,}t (?:mein|meine|er|sie|es|man)"
    ),
)
_FRENCH = _Words(
    neutral=(
        r"(?:peux-tu|pourrais-tu|tu peux|tu pourrais) (?:me |nous )?(?:dire|rappeler|donner)"
        r"|te souviens-tu|tu te souviens|sais-tu|pas encore|encore (?:une?|plus|moins)|toujours pas"
        r"|jusqu'a maintenant|anciens? (?:testament|francais)"
    ),
    present=(
        r"en ce moment|actuellement|actuel(?:le)?s?|a l'heure actuelle|de nos jours|ces jours-ci"
        r"|ces temps-ci|a present|desormais|pour le moment|pour l'instant"
        r"|(?:n'|ne )(?:\w+-)?\w+(?:-\w+)? plus|derniere? en date"
    ),
    present_of_verb=(
        r"maintenant|toujours|encore(?= *[?.!]*$)"
        r"|encore(?= (?:a|au|aux|en|chez|dans|avec|mon|ma|mes)\b)"
    ),
    past=(
        r"auparavant|autrefois|a l'epoque|jadis|initialement|a l'origine|precedemment|dans le passe"
        r"|(?:mon|ma|mes|notre|nos) (?:ancien(?:ne)?s?|precedente?s?|ex)|anciennement"
    ),
    past_of_verb=r"avant|au debut|d'abord|premiere?s?|au depart|precedente?s?|quand j'etais"
    r"|dans mon enfance|enfant",
    past_verb=(
        r"(?:j'|je |tu |n'|ne |me |m'|on |il |elle )?(?:etais|etait|etaient|etions|avais|avait"
        r"|avaient|avions|fut|fus)|\w{2,}aient"
        r"|(?!(?:fais|sais|vais|connais|plais|hais|nais|mais|jamais|parais|francais|anglais"
        r"|japonais|portugais|irlandais|libanais|palais|relais|frais|vrais|marais|desormais|dais"
        r"|balais|essais|delais|biais|disparais)\b)\w{2,}ais"
        r"|(?:habit|travaill|aim|fum|mange|buv|viv|dis|fais|pens|jou|parl|port|conduis|voul|pouv"
        r"|dev|sav|sembl|rest|donn|gagn)ait"
        r"|(?:ai|as|a|avons|avez|ont|ai-je|as-tu|a-t-il|a-t-elle|a-t-on)(?: \w+){0,2}? (?:dit"
        r"|fait|vu|eu|mis|pris|lu|bu|su|pu|vecu|ecrit|recu|connu|appris|voulu|perdu|rendu|vendu|ouvert|fini"
        r"|choisi|parle|mange|achete|habite|travaille|mentionne|rencontre|raconte|visite|decide)"
        r"|(?:suis|est|sommes|sont)(?:-\w+)? (?:alle|allee|parti|partie|venu|venue|ne|nee|arrive"
        r"|reste|devenu|devenue|mort|morte)s?"
        r"|hier|demain|dernier|derniere|il y a|\w+r(?:ai|as|a|ons|ez|ont)-(?:je|tu|il|elle)"
    ),
    accented_past_verb=(
        r"(?:ai|as|a|avons|avez|ont|j'ai|ai-je|as-tu|a-t-il|a-t-elle|a-t-on|suis|est|sont)"
        r"(?: [\w'-]+){0,3}? \w{2,}(?<!mari)(?<!diabétiqu)(?<!préfér)(?<!fatigu)(?<!assur)é(?:e?s?)"
    ),
    present_verb=(
        r"est|sont|suis|es|ai|ai-je|j'ai|a|ont|fais|vais|dois|peux|veux|sais|aime|est-ce que|j'\w+e"
        r"|je \w+|\w{3,}e(?:nt)? (?:mon|ma|mes|notre|nos)|\w+-je|\w+-t-(?:il|elle|on)|s'appelle"
        r"|m'appelle|qu'est-ce que|qui est|c'est"
    ),
)
_SPANISH = _Words(
    neutral=(
        r"(?:puedes|podrias) (?:decir|recordar|dar)(?:me|nos)|recuerdas|sabes|hasta ahora"
        r"|todavia no|aun no|aun asi|ahora que|de ahora en adelante"
    ),
    present=(
        r"actualmente|actual(?:es)?|ahora mismo|en este momento|en estos momentos|hoy en dia|ya no"
        r"|por ahora|de momento|por el momento|en la actualidad|mas reciente"
        r"|sig(?:o|ue|ues|uen|uimos) (?:\w+ ){0,3}(?:\w+ndo|en|con|sin|casad[oa])"
    ),
    present_of_verb=r"ahora|todavia|aun",
    past=(
        r"anteriormente|originalmente|originariamente|inicialmente|en aquel entonces|por entonces"
        r"|en aquella epoca|en el pasado|previamente|soli(?:a|as|an|amos)|antiguamente"
        r"|(?:mi|mis|nuestr[oa]s?) (?:antigu[oa]s?|anterior(?:es)?|ex|viej[oa]s?)"
        r"|(?:trabajo|direccion|numero|empleo|casa|piso|jefe|pareja) anterior"
    ),
    past_of_verb=r"antes|al principio|al inicio|primer[oa]?|cuando era|en un principio"
    r"|de (?:nin[oa]|pequen[oa]|joven)",
    past_verb=(
        r"fui|fue|fueron|fuimos|era|eras|eran|eramos|tuve|tuvo|tuvieron|hice|hizo|hicieron|dije|dijo"
        r"|dijiste|dijeron|estuve|estuvo|estuvieron|pude|pudo|puse|puso|quise|quiso|vine|vino|traje"
        r"|trajo|supe|supo|hubo|iba|ibas|iban|\w{2,}aba[sn]?|\w{2,}abamos|\w{2,}aste|\w{2,}iste"
        r"|\w{2,}aron|\w{2,}ieron|(?:viv|ten|hac|dec|com|beb|conduc|quer|pod|sab|cre|le|escrib|sal"
        r"|sent|dorm|ven|hab|deb|prefer|conoc|parec|pon|segu|ped)ia[sn]?"
        r"|(?:he|has|ha|hemos|han|habeis) (?:\w+ )?\w+(?:ado|ido|to|cho|sto)|ayer|anoche|anteayer"
        r"|pasad[oa]|hace \w+ (?:dias?|semanas?|meses|mes|anos?)|manana|(?:voy|vas|va|vamos|van) a"
    ),
    accented_past_verb=(
        r"(?!(?:qué|porqué|sé|té|café|bebé|josé|andré|también|él)\b)\w{2,}é|\w{2,}ó"
        r"|\w{3,}(?:ré|rás|rá|rán|remos)"
    ),
    present_verb=(
        r"soy|es|eres|son|somos|estoy|esta|estan|estas|tengo|tiene|tienes|tienen|tenemos|hay|vivo"
        r"|hago|hace|puedo|puede|quiero|quiere|debo|debe|gusta|gustan|llama|llamo|llaman|mide|cuesta"
        r"|(?:que|donde|como|quien|cuando|cual|cuanto) \w{3,}[ae]n? (?:mi|mis|nuestr\w+)"
        r"|prefiero|conduzco|se|trabajo|trabaja|como|fumo|bebo|hablo|uso|juego|estudio|necesito"
    ),
)
_CHINESE = _Words(
    neutral=(
        r"还[有没款钱给可要书得原行价]|还是(?![^?]*吗)|原来(?:如此|是)|过(?:敏|年|期|程|分|来|夜|节|滤)"
        r"|[不难经通超]过|了(?:解|不起)|[为除]了|受不了|到目前为止|到现在为止|现在开始|实现在"
        r"|过去(?:的)?[一二两三四五六七八九十几\d]"
    ),
    present=r"现在|目前|当前|如今|眼下|现阶段|仍然?|依然|依旧|不再|已经不|最新|当下|还",
    present_of_verb=r"(?!)",
    past=(
        r"曾经?|当时|那时|当年|最初|起初|一开始|刚开始|早先|从前|小时候|小的时候|年轻时|原先|原来|本来|过去|往年"
        r"|(?:(?<=我)|(?<=你)|(?<=他)|(?<=她)|(?<=们)|(?<![^\s,,。?]))(?:以前|之前)"
        r"|前(?=男友|女友|夫|妻|老板|公司|雇主|同事)|旧(?=地址|号码|电话|公司|手机号|工作|住址)"
        r"|上一[份个任家](?=工作|公司|老板|雇主|房东)|(?<!三天|两天)以前的|之前的"
    ),
    past_of_verb=r"第一[次份个]|以前|之前",
    past_verb=(
        r"了|过|昨[天日晚夜]|前[天年]|去年|上个?(?:周|月|星期|礼拜|次)|\d{4}年|[天周月年]前"
        r"|明[天年]|下个?(?:周|月|星期|次)|将|以后"
    ),
    present_verb=r"吗|什么|谁|哪|几|多少|怎么|如何|是不是|有没有|多大|喜不喜欢|会不会|\?",
)
_JAPANESE = _Words(
    neutral=(
        r"今(?:日|年|月|周|朝|度|回|后|夜|晩|井|村|川|野|更|时|顷)|今まで|いままで|今のところ"
        r"|昔(?:话|々|ばなし)|まだら|あなた|わたし|また|した(?:い|く|ら)|たい(?:です|の|か)"
        r"|[年月日时周]以前|教えて|覚えて(?:います|いる)?か?|この前|目の前|名前|午前|\d+日?前"
    ),
    present=(
        r"現在|今でも|今も|今現在|現時点|目下|相変わらず|最新|今|いま(?=も|は|の|、|でも)|まだ"
        r"|もう[^?]*(?:ない|ません)|現(?=住所|職)"
    ),
    present_of_verb=r"(?!)",
    past=(
        r"以前|昔|かつて|元々|もともと|当時|前は|過去に|元の|旧(?=住所|姓|友)"
        r"|前の(?=住所|仕事|会社|家|電話|上司|職場|車|携帯|学校|番号|彼女|彼氏)|当初|その頃|(?:子供|子ども|若い|学生|幼い)(?:の)?(?:頃|ころ|時代)"
    ),
    past_of_verb=r"最初|初めて|初め|はじめ|前に|前",
    past_verb=(
        r"ました|でした|だった|かった|(?:った|んだ|いた|した|えた|けた|べた|めた|れた|せた|きた|てた"
        r"|みた|りた|ちた|げた)(?![いくちらりし])|昨日|昨年|去年|先[周月日]|一昨[日年]|\d{4}年"
        r"|明日|来[周月年]|予定|つもり|でしょう"
    ),
    present_verb=r"か(?=[?。 ]*$)|\?|何|誰|どこ|どれ|いくつ|いつ|どう|ですか|ますか|なに|だれ",
)
_LANGUAGES = {
    "en": _ENGLISH,
    "de": _GERMAN,
    "fr": _FRENCH,
    "es": _SPANISH,
    "zh": _CHINESE,
    "ja": _JAPANESE,
}
_SPACED = frozenset({"en", "de", "fr", "es"})


def _read(code: str, accented: str, folded: str) -> QueryTense:
    """Returns the time that a question of one language asks about."""
    folded = _pattern(code, "neutral").sub(" ", folded)
    past_verb = any(
        (
            _pattern(code, "past_verb").search(folded),
            _pattern(code, "accented_past_verb").search(accented),
        )
    )
    present_match = _pattern(code, "present").search(folded) or (
        not past_verb and _pattern(code, "present_of_verb").search(folded)
    )
    past = _pattern(code, "past").search(folded) or (
        past_verb and _pattern(code, "past_of_verb").search(folded)
    )
    if present_match or past:
        if present_match and past:
            return QueryTense.NONE
        return QueryTense.PRESENT if present_match else QueryTense.PAST
    if not past_verb and _pattern(code, "present_verb").search(folded):
        return QueryTense.PRESENT_TENSE
    return QueryTense.NONE


@cache
def _pattern(code: str, kind: str) -> re.Pattern[str]:
    words: str = getattr(_LANGUAGES[code], kind)
    if kind != "accented_past_verb":
        words = "".join(letter if letter.isascii() else fold(letter) for letter in words)
    if code not in _SPACED:
        return re.compile(words)
    boundary = "" if words == "(?!)" else r"(?<!\w)"
    return re.compile(rf"{boundary}(?:{words})(?!\w)")
