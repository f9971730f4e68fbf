"""Guesses the language of a short question, among those that have rules of time and tense.

Six words are too few for a statistical model, but they are enough for lists of function words. The
guess only decides between readings of ambiguous words and dates; no search depends on it.
"""

from __future__ import annotations

import re

from strata.shared.search.folded_text import fold

_FUNCTION_WORDS = {
    "en": (
        "a about am an and any are at be been but by can could did do does for from had has have "
        "he her him his how i if in is it its me my of on or our she should so that the their "
        "them there they this to us was we were what when where which who whom whose why will "
        "with would you your"
    ),
    "de": (
        "aber als am auf aus bei bin bist das dass dein deine dem den der des dich die dir du ein "
        "eine einem einen einer er es fur gibt haben habe hast hat hatte ich ihr im in ins ist ja "
        "kann kannst kein keine man mein meine meinem meinen meiner mich mir mit nach nicht noch "
        "oder sein sich sie sind uber um und uns unser vom von vor war waren warum was welche "
        "welchen welcher welches wem wen wer wie wieviel wir wird wo woher wohin wurde zu zum zur"
    ),
    "fr": (
        "a ai as au aux avec avez avons c' ce ces cet cette combien comment d' dans de des dois du "
        "elle elles en es est et etait eu il ils j' je l' la le les leur lui m' ma mais me mes moi "
        "mon n' ne nos notre nous on ont ou par pas plus pour pourquoi qu' quand que quel quelle "
        "quelles quels qui quoi s' sa se ses sommes son sont suis sur t' ta te tes toi ton tu un "
        "une vos votre vous y"
    ),
    "es": (
        "a al como con cual cuales cuando cuanta cuantas cuanto cuantos de del donde el ella ellos "
        "en era es esta estaba estan estas este esto estoy fue ha han has hay he hemos la las le "
        "les lo los me mi mis mucho muy no nos o para pero por porque que quien quienes se ser si "
        "sin sobre son soy su sus te tengo ti tiene tienes tu tus un una unos y yo"
    ),
}  # fmt: skip
_LANGUAGES_OF: dict[str, list[str]] = {}
for _code, _words in _FUNCTION_WORDS.items():
    for _word in _words.split():
        _LANGUAGES_OF.setdefault(_word, []).append(_code)
_WORD = re.compile(r"[a-z]+'?")
_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa]")
_HAN = re.compile("[\u4e00-\u9fff]")
# Japanese writes the words of these characters in kana.
_CHINESE = re.compile("[我你您他她们这那哪么吗呢吧了的谁怎很也都还没说给让在是]")
# Long texts show their language at the beginning.
_ENOUGH = 500


def probable_languages(text: str) -> frozenset[str]:
    """Returns the languages (ISO 639-1) that fit a text best.

    There are several if the words are of several languages, and none if no word is known. A text in
    Han characters without any that only Chinese uses can be Chinese or Japanese.
    """
    folded = fold(text[:_ENOUGH])
    if _KANA.search(folded):
        return frozenset({"ja"})
    if _HAN.search(folded):
        return frozenset({"zh"} if _CHINESE.search(folded) else {"zh", "ja"})
    counts: dict[str, int] = {}
    for word in _WORD.findall(folded):
        for code in _LANGUAGES_OF.get(word) or _LANGUAGES_OF.get(word.rstrip("'"), []):
            counts[code] = counts.get(code, 0) + 1
    most = max(counts.values(), default=0)
    return frozenset(code for code, count in counts.items() if count == most)
