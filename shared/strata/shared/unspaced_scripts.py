"""Writing systems that searches treat in their own way."""

import re

UNSPACED = re.compile(
    "[\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uac00-\ud7af\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\U00020000-\U000323af]+"
)
"""A run of a script that puts no spaces between words.

These are kana, Han, Thai, Lao, Khmer, Myanmar, and Hangul, whose particles stick to the word.
Searches by words cut such a run into overlapping pairs of characters.
"""
