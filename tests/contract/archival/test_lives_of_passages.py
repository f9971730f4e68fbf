"""Random operations on passages: existing ones can be searched, listed and counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from archival_stores import archive, new_passage, new_text, taint_of_tags
from callers import as_project
from strata.archival.domain.history import Author, PassageChange
from strata.archival.domain.passages import (
    ArchiveChange,
    ArchiveRef,
    Filter,
    Origin,
    Passage,
)
from strata.archival.migrations import MIGRATIONS
from strata.archival.store import (
    Expiry,
    PendingPassages,
    PostgresArchiveStore,
    PostgresPassageHistory,
    PostgresPassageStore,
)
from strata.protocol.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from strata.shared import context
from strata.shared.db import Database
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id

T = TypeVar("T")

TEXTS = st.sampled_from(
    [f"the boat {end}" for end in ("sails", "sails on", "sails on!", "sinks", "is sold", "rests")]
)
TAGS = st.frozensets(st.sampled_from(["a", "b", "c"])).map(lambda tags: tuple(sorted(tags)))
TAINTS = st.sampled_from([(), (), ("web",), ("mcp",), ("web", "mcp")])
AGES = st.sampled_from([0, 90, 240])
LIVES = st.sampled_from([0, 60, 180])
"""Minutes, as the ages, and so far from them that no test is so slow."""


@dataclass
class Known:
    """The expected state of a passage."""

    home: int
    age: int
    versions: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    deleted: bool = False

    @property
    def text(self) -> str:
        return self.versions[-1][0]

    @property
    def tags(self) -> tuple[str, ...]:
        return self.versions[-1][1]

    @property
    def taint(self) -> tuple[str, ...]:
        return self.versions[-1][2]


class Machine(RuleBasedStateMachine):
    """Two archives of one agent."""

    service_url = ""
    worker_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.caller = as_project()
        self.known: dict[str, Known] = {}
        self.purged: set[str] = set()
        self.lives = [0, 0]
        self.index: dict[str, tuple[str, tuple[str, ...]]] = {}

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with context.use(self.caller):
            return self.runner.run(work())

    @initialize()
    def connect(self) -> None:
        self.database = Database(self.service_url, pool_size=2)
        self.worker = Database(self.worker_url, pool_size=1)
        self.passages = PostgresPassageStore(self.database)
        self.history = PostgresPassageHistory(self.database)
        self.archives = PostgresArchiveStore(self.database)
        self.pending = PendingPassages(self.database, self.worker)
        self.agent = new_id("agent")

        async def make() -> list[str]:
            await self.archives.prepare(self.agent)
            names = ("one", "two")
            return [
                (await self.archives.create(archive(name), self.agent, RequestKey())).id
                for name in names
            ]

        self.homes = self.run(make)

    def teardown(self) -> None:
        async def close() -> None:
            # Or the next example looks for what waits in vain: too much of others waits before it.
            await self._index_all()
            await self.database.close()
            await self.worker.close()

        if hasattr(self, "database"):
            self.run(close)
        self.runner.close()

    def expired(self, known: Known) -> bool:
        return 0 < self.lives[known.home] <= known.age

    def alive(self, known: Known) -> bool:
        return not known.deleted and not self.expired(known)

    def holder(self, home: int, text: str, besides: str = "") -> str | None:
        """Returns the existing passage of an archive with this text."""
        for passage_id, known in self.known.items():
            same = known.home == home and known.text == text and self.alive(known)
            if same and passage_id != besides:
                return passage_id
        return None

    def forget_expired(self, home: int, text: str) -> None:
        """Removes expired passages, whose texts may be stored again."""
        for passage_id, known in list(self.known.items()):
            in_the_way = known.home == home and known.text == text and not known.deleted
            if in_the_way and self.expired(known):
                self.purged.add(passage_id)
                del self.known[passage_id]

    @rule(home=st.integers(0, 1), text=TEXTS, tags=TAGS, taint=TAINTS, age=AGES)
    def insert(
        self, home: int, text: str, tags: tuple[str, ...], taint: tuple[str, ...], age: int
    ) -> None:
        new = new_passage(text, tags, datetime.now(UTC) - timedelta(minutes=age))
        new = replace(new, origin=Origin(taint=taint))
        known = Known(home, age, [(text, tags, taint)])
        place = ArchiveRef(archive_id=self.homes[home])
        try:
            (stored,) = self.run(lambda: self.passages.insert(place, [new], archive("-")))
        except InvalidArgumentError:
            assert self.expired(known)
            return
        assert not self.expired(known)
        holder = self.holder(home, text)
        assert stored.passage.id == (holder or new.id)
        assert stored.duplicate is (holder is not None)
        if holder is None:
            self.forget_expired(home, text)
            self.known[new.id] = known

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(),
        text=TEXTS | st.none(),
        tags=TAGS | st.none(),
        run=st.sampled_from(["", "run-1"]),
        taint=TAINTS,
    )
    def update(
        self,
        data: st.DataObject,
        text: str | None,
        tags: tuple[str, ...] | None,
        run: str,
        taint: tuple[str, ...],
    ) -> None:
        passage_id, known = self._one(data)
        author = Author(origin=Origin(run_id=run, taint=taint))
        change = PassageChange(author, text=None if text is None else new_text(text), tags=tags)
        expected = text or known.text
        try:
            new = self.run(lambda: self.history.update(passage_id, change, datetime.now(UTC)))
        except NotFoundError:
            assert not self.alive(known)
        except AlreadyExistsError:
            assert self.holder(known.home, expected, passage_id)
        else:
            assert self.alive(known)
            assert not self.holder(known.home, expected, passage_id)
            expected_tags = known.tags if tags is None else tags
            if text is None and expected_tags == known.tags:
                taint = known.taint
            elif text is None or run:
                taint = known.taint + tuple(label for label in taint if label not in known.taint)
            changed = (expected, expected_tags, taint)
            if changed != known.versions[-1]:
                known.versions.append(changed)
                self.forget_expired(known.home, expected)
            assert (*_content(new), new.revision) == (*changed, len(known.versions))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        passage_id, known = self._one(data)
        try:
            self.run(lambda: self.history.delete(passage_id, Author(), datetime.now(UTC)))
        except NotFoundError:
            assert self.expired(known)
        else:
            assert not self.expired(known)
            if not known.deleted:
                known.versions.append(known.versions[-1])
            known.deleted = True

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        passage_id, known = self._one(data)
        revision = data.draw(st.integers(0, len(known.versions)))
        version = known.versions[revision - 1]
        try:
            back = self.run(
                lambda: self.history.restore(
                    passage_id, revision, PassageChange(), datetime.now(UTC)
                )
            )
        except NotFoundError:
            assert self.expired(known)
        except AlreadyExistsError:
            assert self.holder(known.home, version[0], passage_id)
        else:
            assert not self.expired(known)
            assert _content(back) == version
            if known.deleted or version != known.versions[-1]:
                known.versions.append(version)
                self.forget_expired(known.home, version[0])
            known.deleted = False

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        passage_id, known = self._one(data)
        try:
            count = self.run(lambda: self.history.purge(passage_id, RequestKey()))
        except NotFoundError:
            assert self.expired(known)
        else:
            assert count == len(known.versions)
            self.purged.add(passage_id)
            del self.known[passage_id]

    @rule(home=st.integers(0, 1), minutes=LIVES)
    def live(self, home: int, minutes: int) -> None:
        # A text that comes back to life beside the same one is not allowed for in the model.
        revived = [
            model
            for model in self.known.values()
            if model.home == home and self.expired(model) and not 0 < minutes <= model.age
        ]
        if not revived:
            change = ArchiveChange(time_to_live=60 * minutes)
            self.run(lambda: self.archives.update(self.homes[home], change, datetime.now(UTC)))
            self.lives[home] = minutes

    @rule()
    def destroy_expired(self) -> None:
        expiry = Expiry(self.database, self.worker, batch=2, poll=1, wake=lambda: None)

        async def all_of_it() -> None:
            while await expiry.destroy_expired():
                pass

        self.run(all_of_it)
        for passage_id, known in list(self.known.items()):
            if self.expired(known):
                self.purged.add(passage_id)
                del self.known[passage_id]

    @rule()
    def catch_up(self) -> None:
        """Indexes pending texts, as the indexer does."""
        self.run(self._index_all)
        for passage_id, known in self.known.items():
            if self.alive(known):
                assert self.index[passage_id] == (known.text, known.tags)
            elif known.deleted:
                assert passage_id not in self.index
        assert not self.purged & set(self.index)

    async def _index_all(self) -> None:
        project = context.current_project()
        while ids := (await self.pending.find(50)).ids.get(project):
            passages = await self.pending.load(project, ids)
            for passage in passages:
                self.index.pop(passage.id, None)
                if not passage.deleted:
                    self.index[passage.id] = (passage.text, passage.tags)
            await self.pending.done(project, passages)

    @invariant()
    def what_is_alive_is_found_listed_and_counted(self) -> None:
        if hasattr(self, "homes"):
            self.run(self._check)

    async def _check(self) -> None:
        alive = {passage_id for passage_id, known in self.known.items() if self.alive(known)}
        kept = {passage_id for passage_id, known in self.known.items() if not self.expired(known)}
        everything = [*self.known, *self.purged]
        tags: Counter[str] = Counter()
        listed: list[Passage] = []
        for number, home in enumerate(self.homes):
            here = {
                passage_id for passage_id in self.known if self.known[passage_id].home == number
            }
            within = Filter((home,))
            page = await self.passages.page(within, 500, None)
            assert {passage.id for passage in page} == alive & here
            shown = await self.passages.page(Filter((home,), show_deleted=True), 500, None)
            assert {passage.id for passage in shown} == kept & here
            async with self.passages.open_snapshot("boat", within, 500) as snapshot:
                assert set(await snapshot.by_ids(everything)) == alive & here
            by_words = await self.passages.by_words("boat", within, 500)
            assert {match.id for match, _ in by_words} == alive & here
            listed += page
            for passage in page:
                assert _content(passage) == self.known[passage.id].versions[-1]
                assert set(passage.near_duplicate_ids) <= alive & here - {passage.id}
            used = Counter(
                tag for passage_id in alive & here for tag in self.known[passage_id].tags
            )
            assert await self.archives.tags(home, "") == used
            assert (await self.archives.get(home)).passage_count == len(alive & here)
            tags += used
        stats = await self.archives.stats(self.agent)
        by_use = sorted(tags.items(), key=lambda pair: (-pair[1], pair[0]))
        assert (stats.passage_count, stats.tags) == (len(alive), tuple(tag for tag, _ in by_use))
        assert stats.taint == taint_of_tags(listed)
        assert await self.archives.tags("", self.agent) == tags

    def _one(self, data: st.DataObject) -> tuple[str, Known]:
        return data.draw(st.sampled_from(list(self.known.items())))


def _content(passage: Passage) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return passage.text, passage.tags, passage.origin.taint


async def test_random_histories_of_passages(databases: Any) -> None:
    urls = await databases.of(MIGRATIONS)
    machine = type(
        "BoundMachine",
        (Machine,),
        {"service_url": urls.service_url, "worker_url": urls.worker_url},
    )
    await asyncio.to_thread(
        run_state_machine_as_test,
        machine,
        settings=settings(max_examples=12, stateful_step_count=25, deadline=None),
    )
