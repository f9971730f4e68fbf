"""Limits the size of an agent's core memory in its prompt.

Revision ID: 0004
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# Bytes around the blocks of an agent: heading and tags, once.
_FRAME = 112
# Bytes around one block: its tags, the titles, and two numbers of usual length.
_AROUND_BLOCK = 120
# Bytes of the warning above numbered lines.
_NUMBERS_WARNING = 180
_LINES = "(octet_length(value) - octet_length(replace(value, chr(10), '')) + 1)"


def upgrade() -> None:
    """Adds the limits, the sizes of blocks, and the triggers that enforce the limits."""
    _add_columns()
    _add_functions()
    _add_triggers()


def downgrade() -> None:
    """Drops the limits, the sizes and the triggers."""
    op.execute("DROP TRIGGER blocks_within_prompts ON blocks")
    op.execute("DROP TRIGGER attachments_within_prompts ON attachments")
    op.execute("DROP TRIGGER attachments_leave_prompts ON attachments")
    op.execute("DROP FUNCTION change_prompts_by_blocks()")
    op.execute("DROP FUNCTION change_prompts_by_attachments()")
    op.execute("DROP FUNCTION change_prompts(text[], text[], bigint[])")
    op.execute("DROP FUNCTION prompt_sizes(text[], text[])")
    op.execute("ALTER TABLE blocks DROP COLUMN prompt_number_bytes, DROP COLUMN prompt_bytes")
    op.execute(
        "ALTER TABLE prepared_agents DROP COLUMN prompt_revision,"
        " DROP COLUMN prompt_line_numbers, DROP COLUMN prompt_limit_bytes"
    )


def _add_columns() -> None:
    # Without a limit any size is accepted. The revision is that of the agent for which the limit
    # was set: if two limits arrive in the wrong order, the older one is ignored.
    op.execute(
        """
        ALTER TABLE prepared_agents
            ADD COLUMN prompt_limit_bytes bigint CHECK (prompt_limit_bytes >= 0),
            ADD COLUMN prompt_line_numbers boolean NOT NULL DEFAULT false,
            ADD COLUMN prompt_revision bigint NOT NULL DEFAULT 0
        """
    )
    # Bytes of a block in the prompt, and the additional bytes of numbered lines: four and the
    # digits of the number for each line. Stored with the block, so that sums need no text.
    op.execute(
        f"""
        ALTER TABLE blocks
            ADD COLUMN prompt_bytes integer NOT NULL GENERATED ALWAYS AS (
                {_AROUND_BLOCK} + 2 * octet_length(label) + octet_length(description)
                + octet_length(value)) STORED,
            ADD COLUMN prompt_number_bytes integer NOT NULL GENERATED ALWAYS AS (
                {_NUMBERS_WARNING} + CASE value WHEN '' THEN 0 ELSE
                    {_LINES} * (4 + octet_length(CAST({_LINES} AS text))) END) STORED
        """
    )


def _add_functions() -> None:
    op.execute(
        f"""
        CREATE FUNCTION prompt_sizes(projects text[], agents text[])
        RETURNS TABLE (project_id text, agent_id text, plain_bytes bigint, numbered_bytes bigint)
        LANGUAGE sql STABLE AS $$
            SELECT x.project_id, x.agent_id, {_FRAME} + sum(b.prompt_bytes),
                   {_FRAME} + sum(b.prompt_bytes + b.prompt_number_bytes)
            FROM unnest(projects, agents) AS g(project, agent)
            JOIN core_memory.attachments x ON x.project_id = g.project AND x.agent_id = g.agent
            JOIN core_memory.blocks b ON b.project_id = x.project_id AND b.id = x.block_id
            GROUP BY x.project_id, x.agent_id
        $$
        """
    )
    # Refuses changes that make the memory of an agent larger than its limit. Several statements of
    # one transaction may first make space and then use it, so the freed space of an agent is kept
    # until the transaction ends. Agents are locked in order, and always after blocks and
    # attachments; the sizes are read in a separate statement, which sees what was committed while
    # it waited for the lock.
    op.execute(
        """
        CREATE FUNCTION change_prompts(projects text[], agents text[], changes bigint[])
        RETURNS void LANGUAGE plpgsql AS $$
        DECLARE
            earlier CONSTANT jsonb := CAST(
                coalesce(nullif(current_setting('strata.prompt_freed', true), ''), '{}') AS jsonb);
            grown_projects text[];
            grown_agents text[];
            freed jsonb;
            worst record;
        BEGIN
            SELECT array_agg(g.project) FILTER (WHERE g.net > 0),
                   array_agg(g.agent) FILTER (WHERE g.net > 0),
                   jsonb_object_agg(g.key, least(g.net, 0))
                       FILTER (WHERE g.net < 0 OR earlier -> g.key IS NOT NULL)
              INTO grown_projects, grown_agents, freed
              FROM (SELECT r.project, r.agent, k.key,
                           r.change + coalesce(CAST(earlier ->> k.key AS bigint), 0) AS net
                      FROM unnest(projects, agents, changes) AS r(project, agent, change)
                     CROSS JOIN LATERAL (SELECT r.project || '/' || r.agent AS key) k) g;
            IF freed IS NOT NULL THEN
                PERFORM set_config('strata.prompt_freed', CAST(earlier || freed AS text), true);
            END IF;
            IF grown_agents IS NULL THEN
                RETURN;
            END IF;
            PERFORM FROM core_memory.prepared_agents a
               JOIN unnest(grown_projects, grown_agents) AS g(project, agent)
                 ON a.project_id = g.project AND a.agent_id = g.agent
              ORDER BY a.project_id, a.agent_id
                FOR NO KEY UPDATE OF a;
            SELECT a.agent_id, a.prompt_limit_bytes AS most, s.size INTO worst
              FROM (SELECT p.project_id, p.agent_id, p.plain_bytes, p.numbered_bytes
                      FROM core_memory.prompt_sizes(grown_projects, grown_agents) p) p
              JOIN core_memory.prepared_agents a
                ON a.project_id = p.project_id AND a.agent_id = p.agent_id
             CROSS JOIN LATERAL (
                   SELECT CASE WHEN a.prompt_line_numbers THEN p.numbered_bytes
                               ELSE p.plain_bytes END AS size) s
             WHERE s.size > a.prompt_limit_bytes
             ORDER BY s.size - a.prompt_limit_bytes DESC, a.agent_id LIMIT 1;
            IF FOUND THEN
                RAISE EXCEPTION 'core memory is too large for a prompt'
                USING ERRCODE = 'check_violation', CONSTRAINT = 'memory_within_prompt',
                      DETAIL = jsonb_build_object(
                          'agent_id', worst.agent_id, 'size', worst.size, 'limit', worst.most);
            END IF;
        END $$
        """
    )


def _add_triggers() -> None:
    op.execute(
        """
        CREATE FUNCTION change_prompts_by_blocks() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF EXISTS (
                SELECT FROM new_blocks n JOIN old_blocks o USING (project_id, id)
                WHERE n.prompt_bytes <> o.prompt_bytes
                   OR n.prompt_number_bytes <> o.prompt_number_bytes)
            THEN
                PERFORM core_memory.change_prompts(
                    array_agg(c.project_id), array_agg(c.agent_id), array_agg(c.change))
                FROM (SELECT x.project_id, x.agent_id,
                             sum(n.prompt_bytes - o.prompt_bytes
                                 + CASE WHEN a.prompt_line_numbers
                                        THEN n.prompt_number_bytes - o.prompt_number_bytes
                                        ELSE 0 END) AS change
                        FROM new_blocks n
                        JOIN old_blocks o USING (project_id, id)
                        JOIN core_memory.attachments x
                          ON x.project_id = n.project_id AND x.block_id = n.id
                        JOIN core_memory.prepared_agents a
                          ON a.project_id = x.project_id AND a.agent_id = x.agent_id
                       WHERE a.prompt_limit_bytes IS NOT NULL
                       GROUP BY x.project_id, x.agent_id) c
                HAVING count(*) > 0;
            END IF;
            RETURN NULL;
        END $$
        """
    )
    op.execute(
        """
        CREATE FUNCTION change_prompts_by_attachments() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            sign CONSTANT integer := CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END;
        BEGIN
            PERFORM core_memory.change_prompts(
                array_agg(c.project_id), array_agg(c.agent_id), array_agg(c.change))
            FROM (SELECT x.project_id, x.agent_id,
                         sign * sum(b.prompt_bytes + CASE WHEN a.prompt_line_numbers
                                                          THEN b.prompt_number_bytes
                                                          ELSE 0 END) AS change
                    FROM changed_attachments x
                    JOIN core_memory.blocks b
                      ON b.project_id = x.project_id AND b.id = x.block_id
                    JOIN core_memory.prepared_agents a
                      ON a.project_id = x.project_id AND a.agent_id = x.agent_id
                   WHERE a.prompt_limit_bytes IS NOT NULL
                   GROUP BY x.project_id, x.agent_id) c
            HAVING count(*) > 0;
            RETURN NULL;
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER blocks_within_prompts AFTER UPDATE ON blocks"
        " REFERENCING OLD TABLE AS old_blocks NEW TABLE AS new_blocks"
        " FOR EACH STATEMENT EXECUTE FUNCTION change_prompts_by_blocks()"
    )
    op.execute(
        "CREATE TRIGGER attachments_within_prompts AFTER INSERT ON attachments"
        " REFERENCING NEW TABLE AS changed_attachments"
        " FOR EACH STATEMENT EXECUTE FUNCTION change_prompts_by_attachments()"
    )
    op.execute(
        "CREATE TRIGGER attachments_leave_prompts AFTER DELETE ON attachments"
        " REFERENCING OLD TABLE AS changed_attachments"
        " FOR EACH STATEMENT EXECUTE FUNCTION change_prompts_by_attachments()"
    )
