"""Stores what the default embedding model computes once per installation.

    python -m strata.shared.search.embedding.prepare

Otherwise the first process that loads the model stores it, if it may write to the installation.
"""

import argparse

from strata.shared.search.embedding import e5, sentence_encoder


def main() -> None:
    """Stores the arrays and sessions of both models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--arrays-only",
        action="store_true",
        help="do not store sessions, which suit the processor of this machine only",
    )
    if parser.parse_args().arrays_only:
        e5.load_arrays()
        sentence_encoder.load_arrays()
    else:
        e5.E5Model.load()
        sentence_encoder.SentenceEncoder.load()


if __name__ == "__main__":
    main()
