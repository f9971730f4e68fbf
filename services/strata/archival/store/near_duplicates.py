"""SQL that finds near duplicates of a new passage; see `strata.archival.domain.near_duplicates`."""

from __future__ import annotations

from strata.archival.domain.near_duplicates import BANDS, MOST_DIFFERENT_BITS
from strata.archival.store.rows import UNEXPIRED

_MOST_NEAR = 5
_MOST_OF_A_BAND = 16
_BANDS = ", ".join(f"band_{number}" for number in range(BANDS))


def put_signature_sql(source: str) -> str:
    """Returns SQL that inserts or updates the signatures of records ``r``.

    Args:
        source: The FROM clause of the records.
    """
    bands = ", ".join(f"r.bands[{number + 1}]" for number in range(BANDS))
    anew = ", ".join(f"band_{number} = excluded.band_{number}" for number in range(BANDS))
    return f"""
        INSERT INTO archival.passage_likeness (project_id, passage_id, sketch, {_BANDS})
        SELECT :project, r.id, r.sketch, {bands} FROM {source}
        ON CONFLICT (project_id, passage_id) DO UPDATE SET sketch = excluded.sketch, {anew}
    """


def near_sql(record: str) -> str:
    """Returns SQL for the ids of existing near-duplicates, most similar first.

    Each band takes an index lookup of a few rows for any size of the archive. ``OFFSET 0``
    keeps the planner from scanning all passages of the project first. A row is read by its key
    alone and checked afterwards: an index whose condition implies a check would be chosen while
    the table is young, although it is searched by the project only.

    Args:
        record: The alias of the new text's record in the statement.
    """
    looked_up = " UNION ".join(
        f"""(SELECT l.passage_id, l.sketch FROM archival.passage_likeness l
             WHERE l.project_id = :project AND l.band_{number} = {record}.bands[{number + 1}]
             LIMIT {_MOST_OF_A_BAND})"""
        for number in range(BANDS)
    )
    different = f"bit_count(candidate.sketch # {record}.sketch)"
    return f"""
        ARRAY(SELECT p.id FROM ({looked_up}) candidate
              CROSS JOIN LATERAL (
                  SELECT * FROM archival.passages
                  WHERE project_id = :project AND id = candidate.passage_id OFFSET 0) p
              CROSS JOIN LATERAL (
                  SELECT * FROM archival.archives
                  WHERE project_id = :project AND id = p.archive_id OFFSET 0) a
              WHERE candidate.passage_id <> {record}.id AND {different} <= {MOST_DIFFERENT_BITS}
                AND NOT p.deleted AND NOT p.purge AND {UNEXPIRED}
              ORDER BY {different}, p.id LIMIT {_MOST_NEAR})
    """
