"""Writing systems without spaces between words, which searches split in a special way."""

import re

UNSPACED = re.compile(
    "[\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uac00-\ud7af\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\U00020000-\U000323af]+"
)
"""Matches a run of characters of a script that puts no spaces between words.

These are kana, Han, Thai, Lao, Khmer and Myanmar; Hangul too, because its particles are attached
to the word. Full-text search splits such a run into overlapping pairs of characters.
"""
