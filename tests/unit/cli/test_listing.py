"""`quantdrift list quantizers`: data for programs, a table that fits for people."""

import json
from typing import Any

import pytest

from quantdrift.features.doctor import checks as components
from support.command_line import cli


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The versions that are installed, in place of those that are."""
    versions: dict[str, str] = {}
    monkeypatch.setattr(components, "version_of", versions.get)
    return versions


def quantizers() -> dict[str, dict[str, Any]]:
    return {row.pop("quantizer"): row for row in json.loads(cli("list", "quantizers", "--json")[1])}


def test_json_holds_lists_booleans_versions_and_nothing(installed: dict[str, str]) -> None:
    installed.update({"gptqmodel": "7.6.0", "hqq": "0.2.8"})
    rows = quantizers()
    assert rows["gptq"] == {
        "calibrated": True,
        "backends": ["gptqmodel"],
        "default_backend": "gptqmodel",
        "versions": {"gptqmodel": "7.6.0"},
        "available": True,
        "install": None,
    }
    assert (rows["rtn"]["backends"], rows["rtn"]["available"]) == ([], True)
    assert rows["awq"]["available"] is False
    assert rows["awq"]["install"] == 'pip install "quantdrift[awq]"'


def test_the_table_fits_80_columns(installed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    installed.update(dict.fromkeys(("gptqmodel", "autoawq"), "0.2.8.post1"))
    monkeypatch.setenv("COLUMNS", "80")
    _, shown, _ = cli("list", "quantizers")
    assert max(map(len, shown.splitlines())) <= 80
    assert "hqq (missing)" in shown
