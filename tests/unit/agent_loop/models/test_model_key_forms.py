"""The stored form of endpoint keys; malformed keys are refused without showing them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strata.agent_loop.convert.model_keys import model_key
from strata.agent_loop.models.dialects.table import DIALECTS, dialect_of
from strata.api.agent_loop.v1.model_service_pb2 import PutModelKeyRequest
from strata.protocol.errors import InvalidArgumentError

PEM = "-----BEGIN PRIVATE KEY-----\nTk9UIEEgU0VDUkVU\n-----END PRIVATE KEY-----\n"
ACCOUNT = {
    "type": "service_account",
    "project_id": "acme",
    "private_key_id": "a1",
    "private_key": PEM,
    "client_email": "agent@acme.example",
    "client_id": "17",
}


def read(provider: str, key: str) -> str:
    request = PutModelKeyRequest(provider=provider, api_key=key)
    return model_key(request, dialect_of(provider).read_key)


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_the_file_of_a_service_account_is_stored_compactly_without_addresses(indent: Any) -> None:
    file = json.dumps({**ACCOUNT, "token_uri": "http://169.254.169.254/", "x": 1}, indent=indent)
    kept = read("vertex", f"\n{file}\r\n")
    assert json.loads(kept) == ACCOUNT
    assert "\n" not in kept
    assert kept.isascii()


def test_access_token_is_kept_as_it_is() -> None:
    assert read("vertex", "ya29.token") == "ya29.token"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("{", "JSON file of a service account"),
        ("{} SECRET", "JSON file of a service account"),
        ("{" * 5000, "JSON file of a service account"),
        ('{"type": "external_account", "private_key": "SECRET"}', "no other type"),
        (json.dumps({**ACCOUNT, "private_key": "SECRET"}), "its private_key"),
        (json.dumps({**ACCOUNT, "private_key": PEM + "SECRET: x"}), "its private_key"),
        (json.dumps({**ACCOUNT, "client_email": "a\r\nSECRET"}), "its client_email"),
        (json.dumps({**ACCOUNT, "client_email": ["SECRET"]}), "its client_email"),
        (json.dumps({"type": "service_account"}), "its client_email and its private_key"),
        (json.dumps({**ACCOUNT, "x": "SECRET" * 5000}), "16384 characters"),
        ("two SECRET words", "without blanks"),
        ('["SECRET"]\n', "without blanks"),
    ],
)
def test_malformed_vertex_key_is_refused_and_not_shown(key: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read("vertex", key)
    [violation] = caught.value.violations
    assert violation.field == "api_key"
    assert words in violation.description
    assert "SECRET" not in f"{caught.value}{violation}"


@pytest.mark.parametrize("provider", sorted(DIALECTS.keys() - {"vertex"}))
def test_keys_of_other_services_cannot_contain_blanks(provider: str) -> None:
    with pytest.raises(InvalidArgumentError, match="api_key"):
        read(provider, json.dumps(ACCOUNT, indent=2))
