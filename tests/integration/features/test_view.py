"""Finished runs in a real browser: the list leads to reports and to two candidates beside each other."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from integration.report.browser import at_server
from integration.report.page_samples import search_run
from quantdrift.features.view.server import Server, Site


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("view")
    for name, noise in (("W4", 0.3), ("W3", 0.6), ("W2", 1.2)):
        search_run(root / name, noise=noise, spec=f"minilm@{name}-g128-rtn")
    return root


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with Server(Site(folder=folder, beside=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


def nothing_is_cut(page: Page) -> None:
    cut = page.evaluate(
        "[...document.querySelectorAll('main, .scroll, .chart, .examples dt, .command code, .command .word, .head b')]"
        ".filter(each => each.scrollWidth > each.clientWidth + 1)"
        ".map(each => `${each.className} ${each.scrollWidth} in ${each.clientWidth}`)"
    )
    assert cut == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_list_leads_to_a_run_and_to_two_beside_each_other(browser: Browser, url: str, width: int) -> None:
    with at_server(browser, url, width=width) as page:
        assert page.locator("#runs tbody tr").count() == 3
        nothing_is_cut(page)
        page.locator("#runs a", has_text="minilm@W4-g128-rtn").click()
        page.wait_for_selector("#changed")
        assert "minilm@W4-g128-rtn on data" in page.inner_text(".title")
        shown = page.locator(".examples li").first.bounding_box()
        assert shown is not None
        assert shown["y"] + shown["height"] <= (900 if width > 1000 else 844)  # on the first screen
        assert page.locator("#pairs a").count() == 2
        page.locator("#pairs a", has_text="W2").click()
        page.wait_for_selector(".arms.three" if width > 1000 else "#compared")
        nothing_is_cut(page)
        page.locator(".brand").click()
        page.wait_for_selector("#runs")


def test_three_rankings_stand_beside_each_other_and_kinds_are_filtered(browser: Browser, url: str) -> None:
    with at_server(browser, f"{url}pair/W4%2Frun?b=W3%2Frun") as page:
        assert page.locator(".arm h4").all_inner_texts()[0] == "full precision"
        assert [text.split()[0] for text in page.locator(".arm h4").all_inner_texts()] == [
            "full",
            "W4-g128-rtn",
            "W3-g128-rtn",
        ]
        number = page.locator(".numbers div", has_text="only W3-g128-rtn changes it").locator("strong").inner_text()
        for chip in page.locator(".chip").all():
            if "only W3" not in chip.inner_text():
                chip.locator("input").uncheck()
        assert page.locator(".changes li").count() == int(number)
        page.locator(".changes li").first.click()
        first = [arm.locator(".ranking b").first.inner_text() for arm in page.locator(".arm").all()]
        assert first[0] == first[1] != first[2]
        where = page.url
        page.reload()
        assert page.url == where
        assert page.locator(".changes li").count() == int(number)


@pytest.mark.slow
def test_ctrl_c_ends_it_with_one_line(folder: Path) -> None:
    command = [sys.executable, "-m", "quantdrift", "view", str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as view:
        assert view.stdout is not None
        assert re.search(r"http://127\.0\.0\.1:\d+/", view.stdout.readline())
        view.send_signal(signal.SIGINT)
        out, err = view.communicate(timeout=60)
    assert (out, err, view.returncode) == ("ended\n", "", 0)
