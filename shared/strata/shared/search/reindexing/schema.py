"""The tables of indexes and their rebuilds, in the schema of each service that searches."""

from __future__ import annotations

from collections.abc import Iterator

from strata.shared.db import grant_sql, tenant_policy_sql, worker_policy_sql

TABLES = ("serving_indexes", "reindexes")


def create_sql(service: str) -> Iterator[str]:
    """Yields the statements that create the tables.

    Rows about whole collections belong to no project. The worker writes them, and tenants see only
    the serving generations. A rebuild of one archive belongs to its project.
    """
    yield """
        CREATE TABLE serving_indexes (
            project_id text COLLATE "C" NOT NULL DEFAULT '',
            slot text COLLATE "C" NOT NULL,
            generation text COLLATE "C" NOT NULL,
            model text COLLATE "C" NOT NULL,
            dim integer NOT NULL,
            normalized boolean NOT NULL,
            rebuilds integer NOT NULL DEFAULT 0,
            update_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, slot)
        )
        """
    yield """
        CREATE TABLE reindexes (
            project_id text COLLATE "C" NOT NULL DEFAULT '',
            id text COLLATE "C" NOT NULL,
            slot text COLLATE "C" NOT NULL,
            archive_id text COLLATE "C" NOT NULL DEFAULT '',
            request_id text COLLATE "C" NOT NULL DEFAULT '',
            source jsonb NOT NULL,
            target jsonb NOT NULL,
            phase text COLLATE "C" NOT NULL,
            total bigint NOT NULL,
            done bigint NOT NULL DEFAULT 0,
            cursor text[] COLLATE "C" NOT NULL DEFAULT '{}',
            sample jsonb NOT NULL DEFAULT '[]',
            share jsonb NOT NULL DEFAULT '[0, 0, 0]',
            note text NOT NULL DEFAULT '',
            cleaned boolean NOT NULL DEFAULT false,
            create_time timestamptz NOT NULL DEFAULT now(),
            phase_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, id)
        )
        """
    # One rebuild at a time; its unneeded generation is removed before the next one starts.
    yield """
        CREATE UNIQUE INDEX reindexes_open ON reindexes (project_id, slot, archive_id)
        WHERE NOT cleaned
        """
    yield """
        CREATE UNIQUE INDEX reindexes_request ON reindexes (project_id, request_id)
        WHERE request_id <> ''
        """
    yield "CREATE INDEX reindexes_latest ON reindexes (project_id, slot, archive_id, create_time)"
    yield "CREATE INDEX reindexes_queue ON reindexes (phase_time) WHERE NOT cleaned"
    worker = f"strata_{service}_worker"
    for table in TABLES:
        yield tenant_policy_sql(table)
        yield worker_policy_sql(table, service)
        yield grant_sql("SELECT, INSERT, UPDATE", table, worker)
    # All tenants may read which model serves.
    yield "CREATE POLICY shared ON serving_indexes FOR SELECT USING (project_id = '')"


def drop_sql() -> Iterator[str]:
    """Yields the statements that drop the tables."""
    for table in TABLES:
        yield f"DROP TABLE {table}"
