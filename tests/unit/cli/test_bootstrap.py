"""`strata bootstrap` without the settings of a gateway."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from strata.cli.main import app


@pytest.mark.parametrize(
    ("database", "named"),
    [("", "STRATA_GATEWAY_DATABASE_URL"), ("postgresql://h/d", "STRATA_GATEWAY_KEY_PEPPER")],
)
def test_a_missing_setting_is_wrong_usage_and_named(
    monkeypatch: pytest.MonkeyPatch, database: str, named: str
) -> None:
    for name in ("KEY_PEPPER", "KEY_PEPPER_FILE"):
        monkeypatch.delenv(f"STRATA_GATEWAY_{name}", raising=False)
    monkeypatch.setenv("STRATA_GATEWAY_DATABASE_URL", database)
    done = CliRunner().invoke(app, ["bootstrap"])
    assert done.exit_code == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "a\x1b[31m", "x" * 300])
def test_an_invalid_organization_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("STRATA_GATEWAY_DATABASE_URL", "postgresql://127.0.0.1:1/d")
    monkeypatch.setenv("STRATA_GATEWAY_KEY_PEPPER", "pepper" * 10)
    done = CliRunner().invoke(app, ["bootstrap", "--organization", name])
    assert done.exit_code == 2
    assert "The name of the organization" in done.stderr
