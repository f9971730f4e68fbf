"""SCRAM verifiers."""

from __future__ import annotations

import base64

import pytest

from strata.shared.migrate import scram_verifier


def test_a_verifier_equals_that_of_postgresql() -> None:
    # ALTER ROLE x PASSWORD 'pencil' on PostgreSQL 18 stored this, with this salt.
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")

    assert scram_verifier("pencil", salt) == (
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$"
        "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )


def test_every_verifier_has_another_salt() -> None:
    assert scram_verifier("pencil") != scram_verifier("pencil")


@pytest.mark.parametrize("password", ["", "tab\there", "naïve", "nul\0"])
def test_a_password_that_saslprep_might_change_is_refused(password: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        scram_verifier(password)
