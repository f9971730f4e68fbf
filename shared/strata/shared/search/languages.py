"""The languages of texts: recognized by their stop words, stemmed and searched by words.

A third of the words of a sentence are stop words, and they differ between languages. Six words of a
question are too few for a statistical model. Stems and stop words are the same as in the vector
engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from qdrant_edge import Bm25, Bm25Config, TokenizerType

from strata.shared.search.folded_text import fold
from strata.shared.search.unspaced_scripts import UNSPACED

# Their names in the vector engine by ISO 639-1 code.
_STEMMED = {
    "en": "english",
    "de": "german",
    "fr": "french",
    "es": "spanish",
    "it": "italian",
    "pt": "portuguese",
    "nl": "dutch",
}
LANGUAGES = tuple(_STEMMED)
"""The languages whose words are stemmed; words of others become terms unchanged."""
DEFAULT_LANGUAGE = "en"
"""The language of documents whose language is not clear."""
WORD = re.compile(r"(?<!\w)[^\W\d_]+(?!\w)")
"""Matches a word of letters only; an apostrophe ends it, so that elided articles are words."""

# One stop word can be a name or a word of another language.
_LEAST_STOP_WORDS = 2
# Words that the lists of the engine lack: question words, and words with accents. The latter count
# without accents as well, as people type them and `fold` writes them.
_MORE_STOP_WORDS = {
    language: frozenset([*words.split(), *fold(words).split()])
    for language, words in {
        "de": "für über können könnte würde wäre müssen wann warum wer wem wen "
        "welche welcher welches welchem welchen woher wofür worum wohin",
        "fr": "a à comment quel quelle quels quelles quand combien pourquoi où être été",
        "es": "cuándo cuál cuáles cuánto cuánta cómo dónde qué quién",
    }.items()
}
# Passages and messages are short. On three chats of the BEAM benchmark 64 was at least as
# good in hybrid search as 128 and the encoder's own 256.
_AVERAGE_TOKENS = 64.0
_KANA = re.compile("[\u3040-\u30ff]")
_HAN = re.compile("[\u4e00-\u9fff]")
# Japanese writes the words of these characters in kana. Simplified, as `fold` makes them.
_CHINESE = re.compile("[我你您他她们这那哪么吗呢吧了的谁怎很也都还没说给让在是]")
# Long texts show their language at the beginning.
_ENOUGH_CHARS = 500
# The longest alternative comes first where one begins with another.
_CHINESE_FUNCTION_WORDS = re.compile(
    "为什么|什么时候|什么|怎么样|怎么|怎样|哪里|哪儿|哪个|哪些|哪|多少|几点|我们的|我们|我的|现在"
    "|我|你|他|她|的|了|吗|呢|是|在|有|和|就|都|也|吧|这|那|被|给|会|要|谁|还"
)
_JAPANESE_FUNCTION_WORDS = re.compile(
    "ですか|でしょうか|です|でした|ませんでした|ません|ました|ます|どこ|どんな|どの|どれ|どう|いつ|いくら"
    "|だれ|なぜ|何時|何|誰|私たち|私|という|していた|している|した|する|ある|いる|から|まで|ので"
    "|には|では|とは|って|たい|ない|(?<=[\u30a0-\u30ff\u4e00-\u9fff])[はがをにでとものへや]"
)

ENCODERS: Mapping[str, Bm25] = {
    language: Bm25(
        Bm25Config(
            language=name,
            tokenizer=TokenizerType.Word,
            ascii_folding=True,
            avg_len=_AVERAGE_TOKENS,
        )
    )
    for language, name in _STEMMED.items()
}
"""An encoder of the engine for each language: splits, folds and stems words, drops stop words."""


def languages_of(text: str) -> tuple[str, ...]:
    """Returns the languages with most stop words in a text; several if it fits them equally.

    Returns:
        The languages; empty for a text without a stop word.
    """
    return _most_frequent(_stop_word_counts(text))


def probable_languages(text: str) -> frozenset[str]:
    """Returns the languages (ISO 639-1) that a question fits best.

    The guess decides between readings of ambiguous words and dates; no search depends on it. There
    are several languages if the words are of several, and none if no word is known. A text in Han
    characters without any that only Chinese uses can be Chinese or Japanese.
    """
    folded = fold(text[:_ENOUGH_CHARS])
    if _KANA.search(folded):
        return frozenset({"ja"})
    if _HAN.search(folded):
        return frozenset({"zh"} if _CHINESE.search(folded) else {"zh", "ja"})
    return frozenset(_most_frequent(_stop_word_counts(folded, least_letters=1)))


def document_language(text: str) -> str:
    """Returns the language in which a document is stemmed: English unless another fits better.

    Code and names have no language. If each of their chunks were stemmed in another language,
    common words would be rare terms there, and such chunks would be found first.
    """
    counts = _stop_word_counts(text)
    best = max(LANGUAGES, key=counts.__getitem__)
    clear = counts[best] >= _LEAST_STOP_WORDS and counts[best] > counts[DEFAULT_LANGUAGE]
    return best if clear else DEFAULT_LANGUAGE


def _stop_word_counts(text: str, least_letters: int = 2) -> dict[str, int]:
    """Returns the number of stop words of each language.

    Args:
        text: The text.
        least_letters: Shorter words are passed over. Single letters are stop words of most
            languages, but in documents they are also names of variables.
    """
    counts = dict.fromkeys(LANGUAGES, 0)
    for word in WORD.findall(text):
        if len(word) >= least_letters:
            for language in stop_word_languages(word.lower()):
                counts[language] += 1
    return counts


def _most_frequent(counts: Mapping[str, int]) -> tuple[str, ...]:
    most = max(counts.values())
    return tuple(language for language, count in counts.items() if count == most) if most else ()


@lru_cache(maxsize=16_384)
def stop_word_languages(word: str) -> frozenset[str]:
    """Returns the languages in which a lower-case word is a stop word."""
    if not WORD.fullmatch(word):
        return frozenset()
    return frozenset(
        language
        for language, encoder in ENCODERS.items()
        if word in _MORE_STOP_WORDS.get(language, ()) or not encoder.embed_query(word).indices
    )


def without_function_words(text: str) -> str:
    """Returns a text without stop words of its languages; unspaced runs without function words.

    A run of Chinese or Japanese that has nothing else stays whole.
    """
    languages = set(languages_of(text))
    spaced = UNSPACED.sub(_without_unspaced, text)
    return WORD.sub(
        lambda match: " " if languages & stop_word_languages(match.group().lower()) else match[0],
        spaced,
    )


def _without_unspaced(match: re.Match[str]) -> str:
    run = match.group()
    pattern = _JAPANESE_FUNCTION_WORDS if _KANA.search(run) else _CHINESE_FUNCTION_WORDS
    return pattern.sub(" ", run) if pattern.sub("", run) else run
