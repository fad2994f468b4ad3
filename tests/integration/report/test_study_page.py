"""The page of a study in a real browser: the map leads to runs, tables can be searched and sorted, names are text."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from integration.report.browser import content, drawn, opened
from support.command_line import cli
from support.study_samples import study_of

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("study")
    schemes = ("W8", "W4", "W3", "W4-gptq", "W3-gptq", "W3.5+gap", "W2")
    models = ("minilm", HOSTILE)
    study_of(root / "study", models=models, schemes=schemes, data=("docs",), n=40, missing=("W2",), metrics=True)
    code, _, err = cli("report", root / "study", "-o", root / "report.html")
    assert (code, err) == (0, "")
    return root / "report.html"


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_chart_is_drawn_and_a_square_of_the_map_opens_its_run(browser: Browser, file: Path, dark: bool) -> None:
    with opened(browser, file, dark=dark) as page:
        drawn(page)
        assert page.locator(".chart svg").count() == 3
        assert "2 runs of the study are open" in page.inner_text(".first")
        square = page.locator("#map svg text[aria-label*='scheme: W3-gptq'][aria-label*='model: minilm']")
        square.click()
        (part,) = [part for part in content(page)["sections"][1]["parts"] if part["title"] == "minilm W3-gptq on docs"]
        assert page.inner_text("#run .part h2") == part["title"]
        assert page.url.endswith(f"#{part['name']}")
        shown = page.locator("#run .part .grid").first.locator("tbody tr").all_inner_texts()
        assert [row.split("\t") for row in shown] == part["grids"][0]["rows"]


def test_rows_are_filtered_and_sorted_and_lead_to_runs(browser: Browser, file: Path) -> None:
    with opened(browser, file, at="#results") as page:
        rows = page.locator("#results tbody tr")
        assert rows.count() == 12
        page.locator("#results thead button", has_text="flip@1").click()
        flips = [
            float(text.split(" %")[0]) for text in page.locator("#results tbody tr td:nth-child(4)").all_inner_texts()
        ]
        assert flips == sorted(flips, reverse=True)
        page.fill("#results input", "minilm GPTQ")
        assert sorted(page.locator("#results tbody tr:visible th").all_inner_texts()) == [
            "minilm W3-gptq",
            "minilm W4-gptq",
        ]
        page.locator("#results tbody tr:visible a").first.click()
        assert page.inner_text("#run .part h2").startswith("minilm W")


def test_the_map_shows_one_metric_at_a_time_and_a_hostile_name_is_text(browser: Browser, file: Path) -> None:
    with opened(browser, file) as page:
        drawn(page)
        assert page.locator("img").count() == 0
        label = "#map svg text[aria-label*='told: -']"
        assert page.locator(label).count() == 0
        page.locator("#map select").select_option("change of nDCG@10")
        page.wait_for_selector(label)
        page.locator("#results a", has_text=HOSTILE).first.click()
        page.locator("#run .part h2", has_text=HOSTILE).wait_for()


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_of_it_is_cut(browser: Browser, file: Path, width: int) -> None:
    with opened(browser, file, width=width) as page:
        drawn(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        boxes = "[...document.querySelectorAll('.scroll, .chart, header')]"
        assert page.evaluate(f"{boxes}.filter(each => each.scrollWidth > each.clientWidth + 1).length") == 0


def test_a_square_of_the_map_is_reached_and_opened_by_keyboard(browser: Browser, file: Path) -> None:
    with opened(browser, file) as page:
        drawn(page)
        page.locator("#map .chart").focus()
        page.keyboard.press("End")
        assert "scheme" in page.inner_text("#tip")
        page.keyboard.press("Home")
        scheme = page.inner_text("#tip").split("scheme")[1].split()[0]
        page.keyboard.press("Enter")
        page.wait_for_function("() => location.hash.startsWith('#cell-')")
        page.locator("#run .part h2", has_text=scheme).wait_for()
