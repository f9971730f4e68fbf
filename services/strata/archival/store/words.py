"""SQL for the search by words in tables with a ``search_vector``."""

from __future__ import annotations

from strata.shared.search.vectors.sparse import unspaced_pairs

MOST_RANKED = 1_000
"""Maximum of matches that are ranked, newest first: ranking reads the text of every match."""
_MOST_PAIRS = 40


def query_sql(*configurations: str) -> str:
    """Returns SQL for the ``query`` of ``:words``; it returns no row without words.

    A text matches if it has any of the words, and ranking prefers texts with more of them. A
    query that excludes words is used unchanged.

    Args:
        configurations: The text search configurations of the search vector.
    """
    parts = " || ".join(f"websearch_to_tsquery('{name}', :words)" for name in configurations)
    return f"""
        SELECT CASE WHEN query::text LIKE '%!%' THEN query
                    ELSE replace(query::text, ' & ', ' | ')::tsquery END AS query
        FROM (SELECT {parts} AS query) parsed WHERE numnode(query) > 0
    """


def storable(words: str) -> str:
    """Returns a query without NUL, which PostgreSQL cannot store."""
    return words.replace("\x00", " ")


def pairs_of(words: str) -> list[str]:
    """Returns the pairs of characters of a query in a script without spaces; see `pairs_sql`.

    PostgreSQL's parser makes a whole run of such a script one word, which a query rarely equals.
    """
    return unspaced_pairs(storable(words))[:_MOST_PAIRS]


def pairs_sql(column: str) -> str:
    """Returns SQL for the share of ``:pairs`` that a text contains; 0 without pairs."""
    return f"""
        coalesce((SELECT CAST(count(*) AS float8) / nullif(cardinality(CAST(:pairs AS text[])), 0)
                  FROM unnest(CAST(:pairs AS text[])) AS pair
                  WHERE strpos({column}, pair) > 0), 0)
    """
