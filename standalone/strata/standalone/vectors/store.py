"""The collections of one folder: one shard of the engine each, and their aliases.

Layout: `collections/<name>/shard/` belongs to the engine; `collections/<name>/collection.json`
is written last when a collection is created and removed first when it is deleted. A folder
without it is left from an operation of a process that died, and is removed.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import qdrant_edge as edge
from google.protobuf import json_format

from strata.shared.logs import get_logger
from strata.shared.search import qdrant_wire as wire
from strata.standalone.files import write_atomically
from strata.standalone.vectors.convert_schema import collection_info, shard_config
from strata.standalone.vectors.disk_space import WRITE_BYTES, missing_space
from strata.standalone.vectors.errors import (
    BadRequestError,
    DamagedError,
    ExistsError,
    FullDiskError,
    MissingError,
)
from strata.standalone.vectors.filter_rewriter import FilterRewriter

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")

_log = get_logger(__name__)


@dataclass
class _Collection:
    created: wire.collections.CreateCollection
    shard: edge.EdgeShard | None
    unflushed: int = 0
    damage: str = ""
    rewriter: FilterRewriter | None = None


class CollectionStore:
    """The collections of one folder. Not thread-safe.

    The engine appends each operation to its log before it answers, so that the operation survives
    a crash of the process. It survives a crash of the machine once the files of the collection, or
    at least its log, are written to disk (`sync_files`): the engine repeats the operations of the
    log that were not flushed when it loads the collection.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "collections"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._alias_file = folder / "aliases.json"
        self._collections = dict(self._load())
        self._aliases = self._load_aliases()

    def _load(self) -> Iterable[tuple[str, _Collection]]:
        """Yields the stored collections by name; deletes the folders of incomplete ones."""
        for folder in sorted(self._folder.iterdir()):
            description = folder / "collection.json"
            if not description.exists():
                shutil.rmtree(folder)
                continue
            try:
                created = json_format.Parse(
                    description.read_text(), wire.collections.CreateCollection()
                )
            except (json_format.ParseError, UnicodeDecodeError) as error:
                _log.error("collection damaged", collection=folder.name, error=str(error))
                shutil.rmtree(folder)
                continue
            try:
                yield folder.name, _Collection(created, edge.EdgeShard.load(str(folder / "shard")))
            except Exception as error:  # noqa: BLE001 - the engine has one type for all errors
                _log.error("collection damaged", collection=folder.name, error=str(error))
                yield folder.name, _Collection(created, None, damage=str(error))

    def _load_aliases(self) -> dict[str, str]:
        """Returns the stored aliases; none if their file is damaged."""
        try:
            aliases = json.loads(self._alias_file.read_text())
            return {str(alias): str(name) for alias, name in aliases.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError) as error:
            # Services address collections by name, and create their aliases again.
            _log.error("aliases damaged", file=str(self._alias_file), error=str(error))
            return {}

    def names(self) -> list[str]:
        """Returns the names of the collections, sorted, without aliases."""
        return sorted(self._collections)

    def exists(self, name: str) -> bool:
        """Returns whether a collection or an alias of one has this name."""
        return self._aliases.get(name, name) in self._collections

    def create(self, request: wire.collections.CreateCollection) -> None:
        """Makes a collection.

        Raises:
            ExistsError: The name is taken by a collection or an alias.
            BadRequestError: The name or the vectors are not acceptable.
            FullDiskError: The disk has too little space.
        """
        name = request.collection_name
        if not _NAME.fullmatch(name):
            raise BadRequestError(f"{name!r} is not a name for a collection")
        if name in self._collections or name in self._aliases:
            raise ExistsError(f"Wrong input: Collection `{name}` already exists!")
        config = shard_config(request)
        self._check_space()
        folder = self._folder / name
        (folder / "shard").mkdir(mode=0o700, parents=True)
        shard = edge.EdgeShard.create(str(folder / "shard"), config)
        shard.flush()
        write_atomically(folder / "collection.json", json_format.MessageToJson(request))
        self._collections[name] = _Collection(request, shard)

    def delete(self, name: str) -> bool:
        """Removes a collection and its aliases; returns whether there was one."""
        collection = self._collections.pop(name, None)
        if collection is None:
            return False
        other_aliases = {alias: target for alias, target in self._aliases.items() if target != name}
        if other_aliases != self._aliases:
            self._save_aliases(other_aliases)
        folder = self._folder / name
        (folder / "collection.json").unlink()
        if collection.shard is not None:
            collection.shard.close()
        shutil.rmtree(folder)
        return True

    def info(self, name: str) -> wire.collections.CollectionInfo:
        """Returns the configuration and the counts of a collection."""
        collection = self._find(name)
        return collection_info(collection.created, self.shard(name).info())

    def shard(self, name: str) -> edge.EdgeShard:
        """Returns the shard of a collection or alias, for reading.

        Raises:
            MissingError: There is no such collection.
            DamagedError: Its files could not be loaded at start.
        """
        collection = self._find(name)
        if collection.shard is None:
            folder = self.folder(self._aliases.get(name, name))
            raise DamagedError(
                f"collection {name} could not be loaded ({collection.damage}); stop Strata, delete"
                f" the folder {folder} and start it again: the services build it again"
                " from the database"
            )
        return collection.shard

    def filter_rewriter(self, name: str) -> FilterRewriter:
        """Returns the filter rewriter for the current points of a collection.

        Raises:
            MissingError: There is no such collection.
            DamagedError: Its files could not be loaded at start.
        """
        collection, shard = self._find(name), self.shard(name)
        if collection.rewriter is None:
            collection.rewriter = FilterRewriter(shard)
        return collection.rewriter

    def update(self, name: str, operations: Iterable[edge.UpdateOperation]) -> None:
        """Applies operations in order; each survives a crash of the process.

        Raises:
            FullDiskError: The disk has too little space.
        """
        collection, shard = self._find(name), self.shard(name)
        self._check_space()
        collection.rewriter = None
        for operation in operations:
            shard.update(operation)
            collection.unflushed += 1

    def unflushed(self) -> dict[str, int]:
        """Returns how many operations each collection has had since its last flush, if any."""
        return {
            name: collection.unflushed
            for name, collection in self._collections.items()
            if collection.unflushed
        }

    def folder(self, name: str) -> Path:
        """Returns the folder with the files of a collection."""
        return self._folder / name

    def flush(self, name: str) -> None:
        """Writes the changes of a collection to disk, if it still exists, and shortens its log.

        On a full disk the changes stay in the log.
        """
        collection = self._collections.get(name)
        has_space = not missing_space(self._folder, WRITE_BYTES)
        if collection is not None and collection.unflushed and has_space:
            self._flush(collection)

    def close(self) -> None:
        """Flushes and closes every shard."""
        for name in self.unflushed():
            self.flush(name)
        for collection in self._collections.values():
            if collection.shard is not None:
                collection.shard.close()
        self._collections.clear()

    def aliases(self, collection: str | None = None) -> list[tuple[str, str]]:
        """Returns (alias, collection) pairs, sorted; of one collection if it is named."""
        return sorted(pair for pair in self._aliases.items() if collection in (None, pair[1]))

    def change_aliases(self, actions: Iterable[wire.collections.AliasOperations]) -> None:
        """Applies alias operations atomically: if one is refused, none is applied."""
        changed = dict(self._aliases)
        steps: dict[str, Callable[..., None]] = {
            "create_alias": self._create_alias,
            "rename_alias": self._rename_alias,
            "delete_alias": self._delete_alias,
        }
        for action in actions:
            kind = action.WhichOneof("action")
            if kind is None:
                raise BadRequestError("an alias operation is empty")
            steps[kind](changed, getattr(action, kind))
        self._save_aliases(changed)

    def _create_alias(self, aliases: dict[str, str], action: wire.collections.CreateAlias) -> None:
        if action.collection_name not in self._collections:
            raise _missing(action.collection_name)
        self._check_alias(action.alias_name)
        aliases[action.alias_name] = action.collection_name

    def _rename_alias(self, aliases: dict[str, str], action: wire.collections.RenameAlias) -> None:
        if action.old_alias_name not in aliases:
            raise MissingError(f"Not found: Alias {action.old_alias_name} does not exists!")
        self._check_alias(action.new_alias_name)
        aliases[action.new_alias_name] = aliases.pop(action.old_alias_name)

    def _delete_alias(self, aliases: dict[str, str], action: wire.collections.DeleteAlias) -> None:
        aliases.pop(action.alias_name, None)

    def _check_alias(self, alias: str) -> None:
        if not _NAME.fullmatch(alias):
            raise BadRequestError(f"{alias!r} is not a name for an alias")
        if alias in self._collections:
            raise ExistsError(f"Wrong input: Collection `{alias}` already exists!")

    def _save_aliases(self, aliases: dict[str, str]) -> None:
        write_atomically(self._alias_file, json.dumps(aliases, indent=1, sort_keys=True))
        self._aliases = aliases

    def _check_space(self) -> None:
        if missing := missing_space(self._folder, WRITE_BYTES):
            raise FullDiskError(f"the vector engine accepts no writes: {missing}")

    def _find(self, name: str) -> _Collection:
        collection = self._collections.get(self._aliases.get(name, name))
        if collection is None:
            raise _missing(name)
        return collection

    def _flush(self, collection: _Collection) -> None:
        if collection.shard is not None:
            collection.shard.flush()
        collection.unflushed = 0


def _missing(name: str) -> MissingError:
    return MissingError(f"Not found: Collection `{name}` doesn't exist!")
