"""The order of the files: the slowest first, so that no worker is left alone with it at the end."""

from __future__ import annotations

import pytest

SLOWEST = (
    "test_cranfield.py",
    "test_mteb_cli.py",
    "test_law_on_xquad.py",
    "test_adaround_minilm.py",
    "test_minilm.py",
    "test_cli.py",
)


def _rank(name: str) -> int:
    return SLOWEST.index(name) if name in SLOWEST else len(SLOWEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path.name))
