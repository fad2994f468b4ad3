"""One browser for all tests of a worker."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from integration.report.browser import browser as a_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with a_browser() as server:
        yield server
