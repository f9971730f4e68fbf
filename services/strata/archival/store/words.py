"""Searching by words, the same for every table that has a ``search_vector``."""

from __future__ import annotations


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
