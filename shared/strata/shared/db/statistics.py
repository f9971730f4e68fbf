"""Counters of the transactions and statements of a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Statistics:
    """Counters of one `Database` since it was made, for tests and metrics.

    Attributes:
        transactions: Transactions begun; each sets its tenant in the same message.
        statements: Statements executed, inside them and alone.
        alone: Statements executed as separate transactions.
        commits: Transactions that ended with COMMIT.
        rollbacks: Transactions that ended with ROLLBACK or with the loss of their connection.
        connections: Connections opened.
        texts: Every statement's SQL, kept only inside `record`.
    """

    transactions: int = 0
    statements: int = 0
    alone: int = 0
    commits: int = 0
    rollbacks: int = 0
    connections: int = 0
    texts: list[str] = field(default_factory=list, repr=False)
    _recording: bool = field(default=False, repr=False)

    @property
    def round_trips(self) -> int:
        """Round trips to the server, without those that prepare statements."""
        return self.transactions + self.statements + self.commits + self.rollbacks

    def count_statement(self, text: str) -> None:
        """Counts one execution."""
        self.statements += 1
        if self._recording:
            self.texts.append(text)

    @contextmanager
    def record(self) -> Iterator[list[str]]:
        """Yields a list that receives the SQL of every statement executed meanwhile."""
        self.texts, self._recording = [], True
        try:
            yield self.texts
        finally:
            self._recording = False
