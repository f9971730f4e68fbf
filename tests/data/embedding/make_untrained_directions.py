"""Makes the directions of languages that the sentence encoder was not trained on.

    .venv/bin/python tests/data/embedding/make_untrained_directions.py

They span the mean vectors of everyday sentences in 20 such languages (``untrained_languages.json``,
written for this project): of eight statements as documents, and of four questions as queries. The
direction from documents to queries is taken out: a message may be a question, too. They are a file
of their own, so that the projection and with it all stored vectors stay as they are.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from strata.shared.search.embedding import multilingual
from strata.shared.search.embedding.sentence_encoder import SentenceEncoder

_FOLDER = Path(multilingual.__file__).parent / "data"
_DIRECTIONS = 20
# In Greek a semicolon.
_QUESTION_MARKS = ("?", ";", "\u061f")


def main() -> None:
    """Writes the file."""
    encoder = SentenceEncoder.load()
    file = Path(__file__).with_name("untrained_languages.json")
    languages = json.loads(file.read_text(encoding="utf-8"))
    with np.load(_FOLDER / multilingual.PROJECTION) as stored:
        of_documents, of_queries = stored["encoder_document"], stored["encoder_query"]
    means = []
    for texts in languages.values():
        for center, is_question in ((of_documents, False), (of_queries, True)):
            chosen = [text for text in texts if text.endswith(_QUESTION_MARKS) is is_question]
            vectors = np.stack([encoder.embed(encoder.tokenizer.tokenize(text)) for text in chosen])
            centred = vectors - center
            means.append((centred / np.linalg.norm(centred, axis=1, keepdims=True)).mean(axis=0))
    to_queries = (of_queries - of_documents) / np.linalg.norm(of_queries - of_documents)
    rows = np.stack(means)
    rows -= np.outer(rows @ to_queries, to_queries)
    _, _, directions = np.linalg.svd(rows, full_matrices=False)
    np.savez(
        _FOLDER / multilingual.UNTRAINED_DIRECTIONS,
        allow_pickle=False,
        directions=directions[:_DIRECTIONS].astype(np.float16),
    )


if __name__ == "__main__":
    main()
