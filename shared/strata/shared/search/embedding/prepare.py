"""Stores the arrays that the default embedding model computes once per installation.

    python -m strata.shared.search.embedding.prepare

Otherwise the first process that loads the model stores them, if it may write to the installation.
"""

from strata.shared.search.embedding.e5 import E5Model
from strata.shared.search.embedding.sentence_encoder import SentenceEncoder


def main() -> None:
    """Stores the arrays of both models."""
    E5Model.load()
    SentenceEncoder.load()


if __name__ == "__main__":
    main()
