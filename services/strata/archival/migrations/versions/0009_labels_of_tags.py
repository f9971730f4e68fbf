"""Counts the passages of each tag that have labels of untrusted content.

Revision ID: 0009
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_COUNTS = ("labelled_count", "web_count", "mcp_count")
_MOST_USED = (
    "CREATE INDEX archive_tags_most_used ON archive_tags"
    " (project_id, archive_id, count DESC, tag){included} WHERE count > 0"
)


def upgrade() -> None:
    """Adds the counts, counts existing passages, and adds the triggers that maintain the counts."""
    added = ", ".join(f"ADD COLUMN {count} bigint NOT NULL DEFAULT 0" for count in _COUNTS)
    op.execute(f"ALTER TABLE archive_tags {added}")
    # The counts for a prompt are read from the index alone.
    op.execute("DROP INDEX archive_tags_most_used")
    op.execute(_MOST_USED.format(included=f" INCLUDE ({', '.join(_COUNTS)})"))
    _count_existing_passages()
    _add_triggers()


def downgrade() -> None:
    """Drops the counts: the earlier release shows tags without labels."""
    op.execute("DROP TRIGGER labels_of_new_passages ON passages")
    op.execute("DROP TRIGGER labels_of_changed_passages ON passages")
    op.execute("DROP FUNCTION count_labels_of_new_passages()")
    op.execute("DROP FUNCTION count_labels_of_changed_passages()")
    op.execute("DROP INDEX archive_tags_most_used")
    dropped = ", ".join(f"DROP COLUMN {count}" for count in _COUNTS)
    op.execute(f"ALTER TABLE archive_tags {dropped}")
    op.execute(_MOST_USED.format(included=""))


def _count_existing_passages() -> None:
    # The policies hide all rows from a session that names no project. Both tables stay locked until
    # the triggers exist, so that each passage is counted once.
    for table in ("passages", "archive_tags"):
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    op.execute(
        """
        UPDATE archive_tags t SET
            labelled_count = l.labelled, web_count = l.web, mcp_count = l.mcp
        FROM (
            SELECT project_id, archive_id, tag, count(*) AS labelled,
                   count(*) FILTER (WHERE origin -> 'taint' ? 'web') AS web,
                   count(*) FILTER (WHERE origin -> 'taint' ? 'mcp') AS mcp
            FROM passages, unnest(tags) AS tag
            WHERE NOT deleted AND origin ? 'taint'
            GROUP BY project_id, archive_id, tag) l
        WHERE t.project_id = l.project_id AND t.archive_id = l.archive_id AND t.tag = l.tag
        """
    )
    for table in ("passages", "archive_tags"):
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")


def _add_triggers() -> None:
    # Triggers, so that the counts stay correct while the earlier release writes. The rows of the
    # tags exist and are locked in order: the statement that changes a passage has counted its tags.
    # One update for each statement: a row that is updated for each of thousands of passages gets as
    # many versions, all of which each update reads.
    op.execute(
        """
        CREATE FUNCTION count_labels_of_new_passages() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF EXISTS (SELECT FROM new_passages WHERE origin ? 'taint') THEN
                UPDATE archival.archive_tags t SET
                    labelled_count = t.labelled_count + c.labelled,
                    web_count = t.web_count + c.web,
                    mcp_count = t.mcp_count + c.mcp
                FROM (
                    SELECT project_id, archive_id, tag, count(*) AS labelled,
                           count(*) FILTER (WHERE origin -> 'taint' ? 'web') AS web,
                           count(*) FILTER (WHERE origin -> 'taint' ? 'mcp') AS mcp
                    FROM new_passages, unnest(tags) AS tag
                    WHERE NOT deleted AND origin ? 'taint'
                    GROUP BY project_id, archive_id, tag) c
                WHERE t.project_id = c.project_id AND t.archive_id = c.archive_id
                  AND t.tag = c.tag;
            END IF;
            RETURN NULL;
        END $$
        """
    )
    # The indexer's role may not change tags: its updates change no labels.
    op.execute(
        """
        CREATE FUNCTION count_labels_of_changed_passages() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF EXISTS (
                SELECT FROM new_passages n JOIN old_passages o USING (project_id, id)
                WHERE (n.origin ? 'taint' OR o.origin ? 'taint')
                  AND (n.tags, n.deleted, n.origin -> 'taint')
                      IS DISTINCT FROM (o.tags, o.deleted, o.origin -> 'taint'))
            THEN
                UPDATE archival.archive_tags t SET
                    labelled_count = t.labelled_count + c.labelled,
                    web_count = t.web_count + c.web,
                    mcp_count = t.mcp_count + c.mcp
                FROM (
                    SELECT project_id, archive_id, tag, sum(sign) AS labelled,
                           sum(CASE WHEN taint ? 'web' THEN sign ELSE 0 END) AS web,
                           sum(CASE WHEN taint ? 'mcp' THEN sign ELSE 0 END) AS mcp
                    FROM (
                        SELECT project_id, archive_id, tags, origin -> 'taint' AS taint, 1 AS sign
                        FROM new_passages WHERE NOT deleted AND origin ? 'taint'
                        UNION ALL
                        SELECT project_id, archive_id, tags, origin -> 'taint', -1
                        FROM old_passages WHERE NOT deleted AND origin ? 'taint') p,
                        unnest(tags) AS tag
                    GROUP BY project_id, archive_id, tag) c
                WHERE t.project_id = c.project_id AND t.archive_id = c.archive_id
                  AND t.tag = c.tag AND (c.labelled, c.web, c.mcp) <> (0, 0, 0);
            END IF;
            RETURN NULL;
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER labels_of_new_passages AFTER INSERT ON passages"
        " REFERENCING NEW TABLE AS new_passages"
        " FOR EACH STATEMENT EXECUTE FUNCTION count_labels_of_new_passages()"
    )
    op.execute(
        "CREATE TRIGGER labels_of_changed_passages AFTER UPDATE ON passages"
        " REFERENCING OLD TABLE AS old_passages NEW TABLE AS new_passages"
        " FOR EACH STATEMENT EXECUTE FUNCTION count_labels_of_changed_passages()"
    )
