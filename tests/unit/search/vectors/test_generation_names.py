"""Names of collections and generations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.shared.search.vectors import Collection, FieldKind

PASSAGES = Collection("passages", {"tags": FieldKind.KEYWORD})


def test_the_generation_names_collection_model_and_layout() -> None:
    expected = "passages__all-minilm-l6-v2-int8__v1"
    assert PASSAGES.generation("all-minilm-l6-v2-int8") == expected


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_models_never_share_a_generation(left: str, right: str) -> None:
    if left != right:
        assert PASSAGES.generation(left) != PASSAGES.generation(right)


@given(st.text(min_size=1))
def test_generation_names_are_valid_collection_names(model_id: str) -> None:
    name = PASSAGES.generation(model_id)
    assert name.isascii()
    assert len(name) < 200
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789_.-")


@pytest.mark.parametrize("name", ["", "Passages", "a__b", "1st", "a/b"])
def test_other_collection_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        Collection(name, {})


def test_field_names_of_the_index_itself_are_reserved() -> None:
    with pytest.raises(ValueError, match="project_id"):
        Collection("passages", {"project_id": FieldKind.KEYWORD})
