"""The order of the files: the slowest first, so that no worker is left alone with it at the end."""

from __future__ import annotations

import pytest

SLOWEST = ("test_mteb_cli.py", "test_minilm.py", "test_cli.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: SLOWEST.index(item.path.name) if item.path.name in SLOWEST else 9)
