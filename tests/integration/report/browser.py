"""A real browser for reports: whatever a page asks for beyond its own file fails the test, and so does a complaint."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_QUIET = ("disable-gpu", "disable-background-networking", "no-first-run", "disable-sync", "disable-component-update")
_WATCH = """
window.broken = [];
document.addEventListener("securitypolicyviolation", (event) => window.broken.push(event.violatedDirective));
"""


@contextmanager
def browser() -> Iterator[Browser]:
    """The browser that is installed; skips the test if none is."""
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser is installed (one of {', '.join(NAMES)}); Debian's package is chromium")
    with sync_playwright() as playwright:
        # --no-sandbox, as tests run as root in containers
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", *(f"--{x}" for x in _QUIET)])
        yield opened
        opened.close()


def opened(browser: Browser, file: Path, *, at: str = "", **shown: Any) -> AbstractContextManager[Page]:
    """A report in the browser; when the block ends, it must have asked for nothing and complained of nothing."""
    return at_address(browser, f"{file.as_uri()}{at}", lambda url: url.split("#")[0] == file.as_uri(), **shown)


@contextmanager
def at_address(
    browser: Browser,
    url: str,
    allowed: Callable[[str], bool],
    *,
    dark: bool = False,
    width: int = 1280,
    height: int = 900,
) -> Iterator[Page]:
    """A page that may ask for what is allowed, and for nothing else."""
    context = browser.new_context(
        color_scheme="dark" if dark else "light", viewport={"width": width, "height": height}, accept_downloads=False
    )
    context.set_default_timeout(120_000)  # of a machine that does much else
    page, problems = context.new_page(), list[str]()

    def route(asked: Route) -> None:
        if allowed(asked.request.url):
            asked.continue_()
        else:
            problems.append(f"it asked for {asked.request.url[:200]}")
            asked.abort()

    page.route("**/*", route)
    page.add_init_script(_WATCH)
    page.on("console", lambda said: problems.append(said.text) if said.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda shown: problems.append(f"a dialog: {shown.message}"))
    page.goto(url)
    page.wait_for_selector("h1")
    try:
        yield page
        assert problems + page.evaluate("window.broken") == []
    finally:
        context.close()


def content(page: Page) -> Any:
    """What stands in the page as JSON."""
    return page.evaluate("JSON.parse(document.getElementById('data').textContent)")


def drawn(page: Page) -> None:
    """Wait until every chart that is to be seen is drawn."""
    page.wait_for_function(
        "[...document.querySelectorAll('.chart')].every((each) => !each.offsetParent || each.querySelector('svg'))"
    )
