"""Searching by words, the same for every table that has a ``search_vector``."""

from __future__ import annotations

from strata.shared.vectors.sparse import unspaced_pairs

MOST_RANKED = 1_000
"""Ranking reads the text of all that match; older matches than these are not ranked."""
_MOST_PAIRS = 40


def wanted_sql(*configurations: str) -> str:
    """Returns SQL that gives the ``query`` of ``:words``; no row if it has no word.

    One of the words is enough, and the ranking puts those with more of them first; only a
    query that excludes words is taken as it is.

    Args:
        configurations: Text search configurations, as the search vector was made with.
    """
    parts = " || ".join(f"websearch_to_tsquery('{name}', :words)" for name in configurations)
    return f"""
        SELECT CASE WHEN query::text LIKE '%!%' THEN query
                    ELSE replace(query::text, ' & ', ' | ')::tsquery END AS query
        FROM (SELECT {parts} AS query) every WHERE numnode(query) > 0
    """


def storable(words: str) -> str:
    """Returns a query without the character that PostgreSQL refuses."""
    return words.replace("\x00", " ")


def pairs_of(words: str) -> list[str]:
    """Returns what to look for of a query in a script without spaces: see `pairs_sql`.

    PostgreSQL's parser makes one word of each run of such a script, which no query equals.
    """
    return unspaced_pairs(storable(words))[:_MOST_PAIRS]


def pairs_sql(column: str) -> str:
    """Returns SQL for how many of ``:pairs`` stand in a text, as a share of all; 0 without any."""
    return f"""
        coalesce((SELECT CAST(count(*) AS float8) / nullif(cardinality(CAST(:pairs AS text[])), 0)
                  FROM unnest(CAST(:pairs AS text[])) AS pair
                  WHERE strpos({column}, pair) > 0), 0)
    """
