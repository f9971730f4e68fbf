"""``strata migrate``: up to date, and back to an earlier revision."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from strata.cli.commands.migrate import NO_TABLES, SchemaChange, downgrade, migrate_all
from strata.cli.commands.server import migrate
from strata.cli.failures import UsageError
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.standalone.compose.services import SERVICES

if TYPE_CHECKING:
    from conftest import Databases


def urls(databases: Databases) -> dict[str, tuple[str, str]]:
    """Returns URLs with the passwords that the roles get."""
    words = databases.passwords
    pair = tuple(f"postgresql://role:{word}@host/name" for word in (words.service, words.worker))
    return {spec.name: (pair[0], pair[1]) for spec in SERVICES}


RECALL = next(spec.migrations for spec in SERVICES if spec.name == "recall")


async def test_one_service_is_downgraded_and_upgraded_without_the_others(
    databases: Databases,
) -> None:
    url = databases.url(await databases.create())
    await migrate_all(url, urls(databases), check_only=False)
    first = RECALL.revisions[0]
    assert await downgrade(url, "recall", first) == SchemaChange("recall", RECALL.head, first)
    for spec in SERVICES:
        expected = first if spec.name == "recall" else spec.migrations.head
        assert await spec.migrations.version(url) == expected
    assert await downgrade(url, "recall", None) == SchemaChange("recall", first, NO_TABLES)
    assert await RECALL.version(url) is None
    done = await migrate_all(url, urls(databases), check_only=False)
    assert SchemaChange("recall", NO_TABLES, RECALL.head) in done


async def test_unknown_services_and_revisions_are_named_with_the_valid_ones(
    databases: Databases,
) -> None:
    url = databases.url(await databases.create())
    with pytest.raises(UsageError, match=r"no service 'attic'.*recall"):
        await downgrade(url, "attic", None)
    with pytest.raises(UsageError, match=rf"no revision '9000'.*{RECALL.head}"):
        await downgrade(url, "recall", "9000")
    with pytest.raises(FailedPreconditionError):
        await downgrade(url, "recall", RECALL.head)


async def test_downgrades_that_destroy_rows_need_consent(databases: Databases) -> None:
    url = databases.url(await databases.create())
    await migrate_all(url, urls(databases), check_only=False)
    first = RECALL.revisions[0]

    def typed(*, yes: bool) -> None:
        migrate(url=url, service="recall", to=first, yes=yes)

    with pytest.raises(UsageError, match=r"Give --yes"):
        await asyncio.to_thread(typed, yes=False)
    assert await RECALL.version(url) == RECALL.head
    await asyncio.to_thread(typed, yes=True)
    assert await RECALL.version(url) == first


@pytest.mark.parametrize(
    "options",
    [{"to": "0001"}, {"service": "recall"}, {"service": "recall", "to": "0001", "check": True}],
)
def test_options_that_do_not_fit_together_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        migrate(url="postgresql://nowhere", **options)  # type: ignore[arg-type]


async def test_all_partitions_are_migrated_or_the_command_is_refused(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [databases.url(await databases.create()) for _ in range(2)]
    await migrate_all(first, urls(databases), check_only=False)
    monkeypatch.setenv("STRATA_RECALL_PARTITION_DATABASE_URLS__P1", second)

    with pytest.raises(UsageError, match="STRATA_PARTITION_DATABASE_ADMIN_URLS__P1"):
        await asyncio.to_thread(migrate, url=first)
    monkeypatch.setenv("STRATA_PARTITION_DATABASE_ADMIN_URLS__P1", second)
    await asyncio.to_thread(migrate, url=first)

    for spec in SERVICES:
        assert await spec.migrations.version(second) == spec.migrations.head
    await RECALL.check(second, "p1")
    for url, partition in ((first, "p1"), (second, "default"), (second, "p2")):
        with pytest.raises(FailedPreconditionError) as exchanged:
            await RECALL.check(url, partition)
        assert exchanged.value.reason is Reason.PARTITION_NOT_CONFIGURED
        with pytest.raises(FailedPreconditionError):
            await RECALL.upgrade(url, partition=partition)
    await asyncio.to_thread(migrate, url=first, service="recall", to=NO_TABLES, yes=True)
    assert await RECALL.version(first) is await RECALL.version(second) is None
