"""Assembling the model file from verified parts of any source."""

import contextlib
import hashlib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.standalone.chat_model.assets import AssetSourceError, ModelAssembler, PackageSource
from strata.standalone.chat_model.manifest import LOCAL_DEMO, ModelFile, Part
from strata.standalone.chat_model.packages import CommandError
from strata.standalone.chat_model.progress import (
    Cancellation,
    LocalModelError,
    Progress,
    WorkCancelledError,
    ignore,
)

PART_BYTES = 1000
CONTENT = bytes(index * 7 % 251 for index in range(3 * PART_BYTES + 400))


def model_of(content: bytes = CONTENT) -> ModelFile:
    slices = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
    parts = tuple(
        Part(
            f"demo-part{number}==1.0",
            f"demo_part{number}/data/part{number:02d}.bin",
            len(piece),
            hashlib.sha256(piece).hexdigest(),
        )
        for number, piece in enumerate(slices, start=1)
    )
    return ModelFile("demo.gguf", "Demo", hashlib.sha256(content).hexdigest(), parts)


def write_wheel(folder: Path, number: int, piece: bytes) -> None:
    with zipfile.ZipFile(
        folder / f"demo_part{number}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED
    ) as wheel:
        wheel.writestr(f"demo_part{number}/__init__.py", "raise SystemExit('never imported')")
        wheel.writestr(f"demo_part{number}/data/part{number:02d}.bin", piece)


class FolderClient:
    """A package client whose index is a folder of real wheels; it can fail after some of them."""

    name = "folder"

    def __init__(self, wheels: Path, *, fails_at: int | None = None, unpack: bool = False) -> None:
        self.wheels = wheels
        self.fails_at = fails_at
        self.unpack = unpack
        self.fetched: list[str] = []

    def fetch(self, requirement: str, folder: Path, cancellation: Cancellation) -> None:
        cancellation.check()
        name = requirement.partition("==")[0]
        if self.fails_at is not None and len(self.fetched) >= self.fails_at:
            raise CommandError("folder", 1, ["ERROR: connection lost"])
        self.fetched.append(name)
        (wheel,) = self.wheels.glob(f"{name.replace('-', '_')}-*.whl")
        if self.unpack:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
        else:
            (folder / wheel.name).write_bytes(wheel.read_bytes())

    def create_environment(self, folder: Path, cancellation: Cancellation) -> None:
        raise NotImplementedError

    def install(
        self,
        requirement: str,
        environment: Path,
        build_settings: Mapping[str, str],
        cancellation: Cancellation,
        on_line: Callable[[str], None],
    ) -> None:
        raise NotImplementedError


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for number in range(1, 5):
        write_wheel(folder, number, CONTENT[(number - 1) * PART_BYTES : number * PART_BYTES])
    return folder


@pytest.fixture(autouse=True)
def little_spare_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.standalone.chat_model.assets._SPARE_BYTES", 0)


def assembler(folder: Path, *clients: FolderClient) -> ModelAssembler:
    return ModelAssembler(
        model_of(), folder / "model", [PackageSource(client, folder) for client in clients]
    )


def test_the_pinned_model_is_one_file_of_22_parts() -> None:
    assert len(LOCAL_DEMO.parts) == 22
    assert LOCAL_DEMO.size == 1_117_320_768
    assert len({part.sha256 for part in LOCAL_DEMO.parts}) == 22


@pytest.mark.parametrize("unpack", [False, True])
def test_assembles_the_file_from_wheels_or_their_files(
    tmp_path: Path, wheels: Path, unpack: bool
) -> None:
    seen: list[Progress] = []
    model_path = assembler(tmp_path, FolderClient(wheels, unpack=unpack)).ensure(
        seen.append, Cancellation()
    )
    assert model_path.read_bytes() == CONTENT
    assert [step.done for step in seen] == [0, 1000, 2000, 3000, 3400]
    assert {step.total for step in seen} == {3400}
    assert sorted(path.name for path in model_path.parent.iterdir()) == [
        "demo.gguf",
        "demo.gguf.verified.json",
    ]
    assert not list(tmp_path.glob("fetch-*"))


def test_no_part_is_downloaded_twice(tmp_path: Path, wheels: Path) -> None:
    client = FolderClient(wheels)
    first = assembler(tmp_path, client)
    assert not first.ready()
    first.ensure(ignore, Cancellation())
    second = assembler(tmp_path, client)
    assert second.ready()
    second.ensure(ignore, Cancellation())
    assert len(client.fetched) == 4


def test_resumes_after_an_interruption_with_the_missing_parts(tmp_path: Path, wheels: Path) -> None:
    with pytest.raises(LocalModelError, match=r"2 of 4 parts .*connection lost"):
        assembler(tmp_path, FolderClient(wheels, fails_at=2)).ensure(ignore, Cancellation())
    client = FolderClient(wheels)
    path = assembler(tmp_path, client).ensure(ignore, Cancellation())
    assert path.read_bytes() == CONTENT
    assert client.fetched == ["demo-part3", "demo-part4"]


@settings(max_examples=40, deadline=None)
@given(kept=st.integers(0, len(CONTENT) + 50), damaged=st.integers(0, len(CONTENT)))
def test_any_partial_file_is_completed_to_the_pinned_one(
    tmp_path_factory: pytest.TempPathFactory, kept: int, damaged: int
) -> None:
    folder = tmp_path_factory.mktemp("resume")
    (folder / "model").mkdir()
    rest = bytearray(CONTENT[:kept].ljust(kept, b"?"))
    if damaged < kept:
        rest[damaged] ^= 0xFF
    (folder / "model" / "demo.gguf.partial").write_bytes(rest)
    asked: list[int] = []

    class Pieces:
        name = "pieces"

        @contextlib.contextmanager
        def blocks(
            self, model: ModelFile, index: int, cancellation: Cancellation
        ) -> Iterator[Iterator[bytes]]:
            asked.append(index)
            yield iter([CONTENT[index * PART_BYTES : (index + 1) * PART_BYTES]])

    path = ModelAssembler(model_of(), folder / "model", [Pieces()]).ensure(ignore, Cancellation())
    assert path.read_bytes() == CONTENT
    good = min(kept, damaged, len(CONTENT)) if damaged < kept else min(kept, len(CONTENT))
    whole_parts = 4 if good == len(CONTENT) else good // PART_BYTES
    assert asked == list(range(whole_parts, 4))


def test_refuses_a_part_that_does_not_match_its_pin(tmp_path: Path, wheels: Path) -> None:
    write_wheel(wheels, 3, b"x" * PART_BYTES)
    client = FolderClient(wheels)
    with pytest.raises(LocalModelError, match="part 3 does not match its pinned sha256"):
        assembler(tmp_path, client).ensure(ignore, Cancellation())
    assert not (tmp_path / "model" / "demo.gguf").exists()
    assert (tmp_path / "model" / "demo.gguf.partial").read_bytes() == CONTENT[: 2 * PART_BYTES]
    assert client.fetched.count("demo-part3") == 2


def test_stops_reading_a_part_that_is_longer_than_its_pin(tmp_path: Path) -> None:
    read: list[int] = []

    class Endless:
        name = "endless"

        @contextlib.contextmanager
        def blocks(
            self, model: ModelFile, index: int, cancellation: Cancellation
        ) -> Iterator[Iterator[bytes]]:
            def forever() -> Iterator[bytes]:
                while True:
                    read.append(1)
                    yield b"z" * 600

            yield forever()

    with pytest.raises(LocalModelError, match="does not match"):
        ModelAssembler(model_of(), tmp_path / "model", [Endless()]).ensure(ignore, Cancellation())
    assert len(read) == 4  # two attempts, each of two blocks


def test_a_second_source_resumes_where_the_first_stopped(tmp_path: Path, wheels: Path) -> None:
    second = FolderClient(wheels)
    path = assembler(tmp_path, FolderClient(wheels, fails_at=3), second).ensure(
        ignore, Cancellation()
    )
    assert path.read_bytes() == CONTENT
    assert second.fetched == ["demo-part4"]


@pytest.mark.parametrize("damage", ["truncated", "not a zip", "without the member"])
def test_a_damaged_wheel_is_a_source_error(tmp_path: Path, wheels: Path, damage: str) -> None:
    wheel = wheels / "demo_part1-1.0-py3-none-any.whl"
    if damage == "truncated":
        wheel.write_bytes(wheel.read_bytes()[:200])
    elif damage == "not a zip":
        wheel.write_bytes(b"hello")
    else:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("other.txt", "")
    source = PackageSource(FolderClient(wheels), tmp_path)
    with (
        pytest.raises(AssetSourceError),
        source.blocks(model_of(), 0, Cancellation()) as blocks,
    ):
        list(blocks)


def test_a_manually_copied_file_is_checked_before_use(tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "demo.gguf").write_bytes(CONTENT)
    client = FolderClient(wheels)
    ready = assembler(tmp_path, client)
    assert not ready.ready()
    ready.ensure(ignore, Cancellation())
    assert ready.ready()
    assert client.fetched == []


def test_a_changed_file_is_fetched_again(tmp_path: Path, wheels: Path) -> None:
    client = FolderClient(wheels)
    path = assembler(tmp_path, client).ensure(ignore, Cancellation())
    path.write_bytes(CONTENT[:-1] + b"!")
    assembler(tmp_path, client).ensure(ignore, Cancellation())
    assert path.read_bytes() == CONTENT
    assert client.fetched.count("demo-part4") == 2


def test_the_error_states_the_missing_space(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.standalone.chat_model.assets._SPARE_BYTES", 1 << 60)
    client = FolderClient(wheels)
    with pytest.raises(LocalModelError, match=r"needs \d+ MB of free space"):
        assembler(tmp_path, client).ensure(ignore, Cancellation())
    assert client.fetched == []


def test_cancelling_keeps_verified_parts(tmp_path: Path, wheels: Path) -> None:
    cancellation = Cancellation()

    def stop_after_two(step: Progress) -> None:
        if step.done == 2 * PART_BYTES:
            cancellation.cancel()

    with pytest.raises(WorkCancelledError):
        assembler(tmp_path, FolderClient(wheels)).ensure(stop_after_two, cancellation)
    assert (tmp_path / "model" / "demo.gguf.partial").stat().st_size == 2 * PART_BYTES
