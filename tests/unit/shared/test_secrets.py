"""Encryption of secrets at rest, bound to their context."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from security_examples import security_examples
from strata.protocol.errors import DataLossError
from strata.shared.secrets import Envelope, context_of, generate_master_key, read_master_keys

OLD, NEW = generate_master_key(), generate_master_key()
HERE = context_of("project-1", "model_key", "", "openai")
SECRET = b"sk-the-secret-of-somebody"


def envelope(*keys: str) -> Envelope:
    return Envelope(read_master_keys(keys))


@security_examples
@given(secret=st.binary(max_size=300), context=st.binary(max_size=60))
def test_sealed_values_can_be_opened(secret: bytes, context: bytes) -> None:
    box = envelope(OLD)
    assert box.open(box.seal(secret, context), context) == secret


def test_encryption_is_randomized_and_hides_the_secret() -> None:
    box = envelope(OLD)
    first, second = box.seal(SECRET, HERE), box.seal(SECRET, HERE)
    assert first != second
    assert SECRET not in first
    # The header alone is the same: no nonce and no data key is used twice.
    assert first[18:] not in second
    assert first[18:30] != second[18:30]


@security_examples
@given(position=st.integers(min_value=0), flip=st.integers(min_value=1, max_value=255))
def test_any_changed_byte_is_detected(position: int, flip: int) -> None:
    box = envelope(OLD)
    sealed = bytearray(box.seal(SECRET, HERE))
    sealed[position % len(sealed)] ^= flip
    with pytest.raises(DataLossError) as caught:
        box.open(bytes(sealed), HERE)
    assert "sk-" not in str(caught.value)
    assert caught.value.__cause__ is None


@security_examples
@given(length=st.integers(min_value=0, max_value=200))
def test_truncation_is_detected(length: int) -> None:
    box = envelope(OLD)
    sealed = box.seal(SECRET, HERE)
    with pytest.raises(DataLossError):
        box.open(sealed[: min(length, len(sealed) - 1)], HERE)


@security_examples
@given(junk=st.binary(max_size=400))
def test_invalid_data_is_refused(junk: bytes) -> None:
    with pytest.raises(DataLossError):
        envelope(OLD).open(junk, HERE)


@pytest.mark.parametrize(
    "other",
    [
        context_of("project-2", "model_key", "", "openai"),
        context_of("project-1", "secret", "", "openai"),
        context_of("project-1", "model_key", "agent-1", "openai"),
        context_of("project-1", "model_key", "", "anthropic"),
        context_of("project-1", "model_key", "open", "ai"),
        b"",
    ],
)
def test_a_secret_opens_only_with_its_context(other: bytes) -> None:
    box = envelope(OLD)
    with pytest.raises(DataLossError):
        box.open(box.seal(SECRET, HERE), other)


def test_a_new_master_key_encrypts_and_the_old_one_still_decrypts() -> None:
    sealed = envelope(OLD).seal(SECRET, HERE)
    both = envelope(NEW, OLD)
    assert both.open(sealed, HERE) == SECRET
    again = both.seal(SECRET, HERE)
    assert envelope(NEW).open(again, HERE) == SECRET
    with pytest.raises(DataLossError, match="master key that is missing"):
        envelope(OLD).open(again, HERE)


def test_a_wrong_key_with_the_right_name_decrypts_nothing() -> None:
    [(name, key)] = read_master_keys([OLD]).items()
    sealed = Envelope({name: key}).seal(SECRET, HERE)
    with pytest.raises(DataLossError):
        Envelope({name: bytes(32)}).open(sealed, HERE)


def test_master_keys_are_read_in_order_and_blank_lines_do_not_count() -> None:
    assert list(read_master_keys([f"{NEW}\n", "", "  ", OLD]).values()) == [
        base64.b64decode(NEW),
        base64.b64decode(OLD),
    ]


@pytest.mark.parametrize(
    "text", ["secret!", "c2hvcnQ=", f"{OLD}{NEW}"], ids=["no base64", "short", "two in one"]
)
def test_an_invalid_master_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match="master key 1") as caught:
        read_master_keys([text])
    assert text not in str(caught.value)


def test_without_a_master_key_an_envelope_is_refused() -> None:
    with pytest.raises(ValueError, match="no master key"):
        Envelope({})
    with pytest.raises(ValueError, match="32 bytes"):
        Envelope({"one": b"short"})
