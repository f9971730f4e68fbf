"""The SQL fingerprint of an agent's ``<directories>``, for the statement that compiles memory."""

from __future__ import annotations

DIRECTORIES_FINGERPRINT = """
    coalesce((
        SELECT md5(string_agg(d.id || '@' || d.revision, ',' ORDER BY a.position) || '|'
            || coalesce((
                SELECT string_agg(
                    o.file_id || ':' || o.start_line || '-' || o.end_line || '@' || f.content_hash,
                    ',' ORDER BY o.file_id)
                FROM core_memory.open_files o
                JOIN core_memory.files f ON f.project_id = o.project_id AND f.id = o.file_id
                WHERE o.project_id = :project AND o.agent_id = :agent), '')
            || coalesce((
                SELECT '|' || array_to_string(n.closed_files, '/')
                FROM core_memory.prepared_agents n
                WHERE n.project_id = :project AND n.agent_id = :agent), ''))
        FROM core_memory.folder_attachments a
        JOIN core_memory.folders d ON d.project_id = a.project_id AND d.id = a.folder_id
        WHERE a.project_id = :project AND a.agent_id = :agent), '')
"""
"""A scalar of the parameters ``project`` and ``agent``; '' if no folder is attached.

Equal fingerprints mean equal directories. It depends on the folders, the open windows and the
files that were closed to fit. It does not read the other files: a folder's revision increases with
every change of its files that is visible in a prompt.
"""
