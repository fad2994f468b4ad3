"""`quantdrift list quantizers`: data for programs."""

import json

import pytest

from support.command_line import cli


def test_json_holds_lists_booleans_versions_and_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdrift.features.doctor.checks.version_of", {"gptqmodel": "7.6.0", "hqq": "0.2.8"}.get)
    rows = {row.pop("quantizer"): row for row in json.loads(cli("list", "quantizers", "--json")[1])}
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
