"""The page of a run in a real browser."""

import csv
import io
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, CDPSession, Page

from integration.report.browser import content, drawn, opened
from integration.report.page_samples import classes_run, search_run
from quantdrift.report.page import LARGEST, render
from quantdrift.report.run import page_of
from quantdrift.runs.folder import Run, read_run
from support.beir_folder import numbered
from support.command_line import cli
from support.places import ROOT


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return search_run(tmp_path_factory.mktemp("search"))


@pytest.fixture(scope="module")
def file(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its page, as the command writes it."""
    out = tmp_path_factory.mktemp("page") / "report.html"
    assert "in place of" not in cli("report", run.path, "-o", out)[1]
    code, told, err = cli("report", run.path, "-o", out)
    assert (code, err) == (0, "")
    assert "in place of the earlier one" in told
    return out


def computing(session: CDPSession) -> float:
    """Seconds that the page has kept its thread busy since it was asked to count, whatever else the machine does."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))


def cells(page: Page, section: str) -> list[list[str]]:
    run: list[list[str]] = page.eval_on_selector_all(
        f"#{section} tbody tr", "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )
    return run


def test_the_first_screen_says_what_changed_beside_the_noise_floor(browser: Browser, file: Path, run: Run) -> None:
    with opened(browser, file) as page:
        labels, values = (page.locator(f".numbers {part}").all_inner_texts() for part in ("span.label", "strong"))
        numbers = dict(zip(labels, values, strict=True))
        flips = run["flip@1"].value or 0
        assert numbers["nDCG@10, candidate"] == f"{run['ndcg@10'].value:.4f}"
        assert f"{100 * flips:.1f} % of the inputs have another top-1" in page.inner_text("body")
        assert "quantdrift certify" in page.inner_text(".steps")
        assert page.title().endswith("minilm@W4-g128-rtn on data")


def test_tables_show_what_stands_in_the_page(browser: Browser, file: Path, run: Run) -> None:
    with opened(browser, file) as page:
        sections = {section["name"]: section for section in content(page)["sections"]}
        for name in ("closeness", "all-metrics", "facts"):
            assert cells(page, name) == sections[name]["grids"][0]["rows"], name
        every = {row[0]: row for row in cells(page, "all-metrics")}
        assert (every["flip@1"][3], every.keys()) == (str(run["flip@1"].n), run.record["metrics"].keys())


def test_changes_are_listed_harmful_first_with_rankings_and_texts(browser: Browser, file: Path, run: Run) -> None:
    changed = run.changed()
    top = run.evidence()
    with opened(browser, file) as page:
        assert page.locator(".changes li b").all_inner_texts() == [change.input_id for change in changed[:50]]
        worst = changed[0]
        row = list(top.input_ids).index(worst.input_id)
        for place, arm in enumerate((top.reference_top, top.candidate_top)):
            names = page.locator(".arm").nth(place).locator("b").all_inner_texts()
            assert names == [str(top.item_ids[item]) for item in arm.items[row, :10]]
        assert page.locator(".arm").nth(0).locator(".score").first.inner_text() == f"{worst.score_before:.4f}"
        assert f"text of document {worst.before[1:]}," in page.locator(".arm").nth(0).locator("p").first.inner_text()
        assert "✓ relevant" in page.locator(".arm").nth(0).inner_text()
        assert f"query number {worst.input_id[1:]}" in page.inner_text(".pane header")


def test_keys_move_search_open_and_close(browser: Browser, file: Path, run: Run) -> None:
    names = [change.input_id for change in run.changed()]
    with opened(browser, file) as page:

        def chosen() -> str:
            return page.inner_text(".pane header b")

        assert chosen() == names[0]
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        assert (chosen(), page.evaluate("location.hash")) == (names[1], f"#q={names[1]}")
        page.keyboard.press("ArrowDown")
        assert (chosen(), page.get_attribute("[aria-selected=true]", "id")) == (names[2], "change-2")
        page.keyboard.press("Escape")
        assert page.locator(".pane header").count() == 0
        page.keyboard.press("/")
        page.keyboard.type(f"number {names[3][1:]}")
        page.keyboard.press("Enter")
        assert f"query number {names[3][1:]}" in page.inner_text(".pane header")
        page.keyboard.press("?")
        assert page.locator("dialog").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("dialog").is_visible()


def test_search_and_kinds_leave_out_what_is_not_wanted(browser: Browser, file: Path, run: Run) -> None:
    changed = run.changed()
    harmful = [change.input_id for change in changed if change.kind == "harmful"]
    with opened(browser, file) as page:
        for kind in ("neutral", "beneficial"):
            page.locator(".chip", has_text=kind).locator("input").uncheck()
        assert page.locator(".changes li b").all_inner_texts() == harmful[:50]
        page.fill("input[type=search]", f"QUERY {harmful[-1][1:]}")
        assert harmful[-1] in page.locator(".changes li b").all_inner_texts()
        page.fill("input[type=search]", "nothing is like this")
        assert "No change is like that" in page.inner_text(".pager")


def test_a_link_opens_its_query(browser: Browser, file: Path, run: Run) -> None:
    last = run.changed()[-1].input_id
    with opened(browser, file, at=f"#q={quote(last)}") as page:
        assert page.inner_text(".pane header b") == last
        page.evaluate("location.hash = '#facts'")
        page.wait_for_function("document.getElementById('facts').open")
        page.evaluate("location.hash = '#q=is-not-there'")


def test_both_themes_draw_the_charts_and_the_switch_turns_them(browser: Browser, file: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, file) as page:
        drawn(page)
        assert page.locator(".chart svg").count() == 1
        light = page.evaluate(background)
        before = page.inner_html(".chart")
        page.click("button[aria-label='Light or dark']")
        assert page.evaluate(background) != light
        page.wait_for_function("before => document.querySelector('.chart').innerHTML !== before", arg=before)
    with opened(browser, file, dark=True) as page:
        drawn(page)
        assert page.evaluate(background) != light
        page.emulate_media(media="print")
        assert page.evaluate(background) == light
        assert page.locator("h1").is_visible()
        for control in (".filters", "nav", ".command button"):
            assert not page.locator(control).first.is_visible()
        assert "invert" in page.evaluate("getComputedStyle(document.querySelector('.chart svg')).filter")


def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, file: Path, run: Run) -> None:
    with opened(browser, file, width=360, height=740) as page:
        drawn(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert page.locator(".pane").is_hidden()
        page.locator(".changes li").nth(1).click()
        assert page.inner_text(".pane header b") == run.changed()[1].input_id
        assert page.locator(".pane").bounding_box() == {"x": 0, "y": 0, "width": 360, "height": 740}
        page.click("button[aria-label=Close]")
        assert page.locator(".pane").is_hidden()


NASTY = {
    "script": "<script>window.broken.push('ran')</script></script><img src=x onerror=\"window.broken.push('ran')\">",
    "turned": "\u202etxet denrut \u2066 עברית \u2028 next",
    "control": "red \x1b[31m \x00 \x07 \x9b2J",
    "long": "all of a megabyte " * 60_000,
    "comment": "<!-- <script> ]]> &lt; {policy} ${1} `",
    "javascript:alert(1)": "javascript:alert(1)",
    "#q=x&y": "https://evil.example/ @me",
}


def test_a_hostile_corpus_is_shown_and_does_nothing(browser: Browser, tmp_path: Path) -> None:
    documents = {f"d{place} {text[:40]}": text for place, text in enumerate(NASTY.values())}
    run = search_run(
        tmp_path,
        {name + text[:20]: text for name, text in NASTY.items()},
        documents,
        noise=30,
        spec="</script><script>window.broken.push('ran')</script>@W4",
    )
    changed = run.changed()
    assert len(changed) > 3
    file = tmp_path / "report.html"
    assert cli("report", run.path, "-o", file)[0] == 0
    assert file.stat().st_size < 1_500_000
    with opened(browser, file) as page:
        drawn(page)
        assert page.locator("script").count() == 3  # the data, ours, and what draws charts
        assert page.locator("img, iframe, a[href^=javascript], a[href^=http]").count() == 0
        whole = content(page)
        listed = next(section for section in whole["sections"] if section["name"] == "changed")["changed"]
        for place, row in enumerate(listed["changed"]):
            page.locator(".changes li").nth(place).click()
            assert page.inner_text(".pane header b") == " ".join(row["id"].split())
            assert page.text_content(".pane header > p") == row["text"]
            assert len(row["text"]) < 2_100
        assert not any(sign in page.inner_text("body") for sign in "\x1b\x00\x07\x9b\u202e\u2066\u2028")
        if "long" in [change.input_id[:4] for change in changed]:
            assert "1,080,000 characters, of which the first 2,000 are shown" in page.inner_text("body")


def test_classes_without_texts_are_shown_too(browser: Browser, tmp_path: Path) -> None:
    run, file = classes_run(tmp_path), tmp_path / "report.html"
    assert cli("report", run.path, "-o", file)[0] == 0
    with opened(browser, file) as page:
        assert "another class" in page.inner_text("body")
        assert "the right class" in page.inner_text(".arms")
        assert page.locator(".changes li").count() == min(50, len(run.changed()))
        assert "accuracy, candidate" in page.inner_text(".numbers")
        assert f"quantdrift show {run.path} --data FOLDER" in page.inner_text(".explorer")


@pytest.mark.slow
def test_ten_thousand_queries_open_within_two_seconds(browser: Browser, tmp_path: Path) -> None:
    words = "what is the boundary layer of a slender body at high speed and how is it measured "
    queries = numbered("query-", [f"{words[row % 40 :]} number {row}" for row in range(10_000)])
    documents = numbered("document-", [words * 8 for _ in range(300)])
    run = search_run(tmp_path, queries, documents, noise=30)
    assert len(run.changed()) > 9_000
    file = tmp_path / "report.html"
    file.write_text(render(page_of(read_run(run.path))), encoding="utf-8")
    assert file.stat().st_size < LARGEST
    with opened(browser, file) as page:
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.reload()
        drawn(page)
        assert 0.05 < computing(session) < 2
        page.keyboard.press("/")
        page.keyboard.type("number 9876")
        page.wait_for_function("document.querySelectorAll('.changes li').length === 1")
        assert computing(session) < 3


# --- what a first look, paper and the keyboard get -------------------------------------------------


def cut(page: Page) -> list[str]:
    """The parts of the page that do not show all that is in them."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('main, header, .scroll, .chart, .numbers div, .steps code')]"
        ".filter(each => each.offsetParent && each.scrollWidth > each.clientWidth + 1)"
        ".map(each => `${each.tagName} ${each.className} ${each.scrollWidth} in ${each.clientWidth}`)"
    )
    return found


def test_ten_examples_with_texts_begin_on_the_first_screen(browser: Browser, file: Path, run: Run) -> None:
    changed = run.changed()
    with opened(browser, file) as page:
        rows = page.locator(".examples li")
        assert rows.count() == 10 < len(changed)
        for place in (0, 1, 2):
            one, row = changed[place], rows.nth(place)
            assert row.locator("p a").inner_text() == f"query number {one.input_id[1:]}"
            texts = row.locator("dd bdi").all_inner_texts()
            assert texts == [f"text of document {str(item)[1:]}, in a few words" for item in (one.before, one.after)]
            box = row.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= 900
        rows.nth(1).locator("a").click()
        page.wait_for_function("() => location.hash !== ''")
        assert page.inner_text(".pane header b") == changed[1].input_id


def test_paper_has_the_examples_in_place_of_the_list(browser: Browser, file: Path) -> None:
    with opened(browser, file, width=390) as page:
        assert page.locator(".examples li").nth(9).is_hidden()  # a telephone shows three
        page.emulate_media(media="print")
        assert all(row.is_visible() for row in page.locator(".examples li").all())
        assert page.locator("#changed").is_hidden()
        assert page.locator("#closeness").is_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut(browser: Browser, file: Path, width: int) -> None:
    with opened(browser, file, width=width) as page:
        page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true; })")
        drawn(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert [part for part in cut(page) if "tall" not in part or width > 1000] == []


def test_what_to_do_begins_with_what_the_verdict_advises(browser: Browser, tmp_path: Path) -> None:
    run = search_run(tmp_path, noise=3)
    file = tmp_path / "report.html"
    assert cli("report", run.path, "-o", file)[0] == 0
    with opened(browser, file) as page:
        step = page.locator(".steps li").first.inner_text()
        assert step.startswith(run.verdict.next)
        assert f"quantdrift repair minilm@W4-g128-rtn --data {tmp_path / 'data'}" in step


def test_words_tell_what_they_mean_to_the_pointer_and_the_keyboard(browser: Browser, file: Path) -> None:
    with opened(browser, file) as page:
        page.locator(".numbers .term", has_text="nDCG@10").first.hover()
        assert "relevant documents rank" in page.inner_text("#tip")
        page.mouse.move(5, 500)
        page.wait_for_selector("#tip", state="detached")
        page.locator(".numbers .term", has_text="95 %").first.focus()
        assert "95 of 100" in page.inner_text("#tip")
        page.keyboard.press("Escape")
        assert page.locator("#tip").count() == 0


def test_every_word_that_is_explained_is_in_the_glossary() -> None:
    script = (ROOT / "quantdrift" / "report" / "assets" / "page.js").read_text(encoding="utf-8")
    terms = re.findall(r'^  "([^"]+)": "', script.partition("const TERMS = {")[2].partition("};")[0], re.MULTILINE)
    pages = " ".join(
        (ROOT / "docs" / "reference" / f"{name}.md").read_text("utf-8") for name in ("glossary", "metrics", "gate")
    )
    assert len(terms) > 15
    assert [term for term in terms if term.lower() not in pages.lower() and term != "95 %"] == []


def test_arrow_keys_go_through_the_marks_of_a_chart(browser: Browser, file: Path) -> None:
    with opened(browser, file) as page:
        drawn(page)
        page.locator("#figure-separation .chart").focus()
        page.keyboard.press("ArrowRight")
        first = page.inner_text("#tip")
        assert "inputs" in first
        assert page.evaluate("document.activeElement.closest('svg') !== null")
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#tip") != first
        page.keyboard.press("Home")
        assert page.inner_text("#tip") == first


def test_what_is_searched_for_stays_in_the_address(browser: Browser, file: Path, run: Run) -> None:
    wanted = next(change.input_id for change in run.changed() if change.kind == "harmful")
    with opened(browser, file) as page:
        page.fill("input[aria-label='Search ids and texts']", f"number {wanted[1:]}")
        page.locator(".chip", has_text="neutral").locator("input").uncheck()
        shown = page.locator(".changes li b").all_inner_texts()
        address = page.url.partition("#")[2]
    with opened(browser, file, at=f"#{address}") as page:
        assert page.locator(".changes li b").all_inner_texts() == shown
        assert not page.locator(".chip", has_text="neutral").locator("input").is_checked()
        assert page.input_value("input[aria-label='Search ids and texts']") == f"number {wanted[1:]}"
        page.locator("#all-metrics summary").click()
        page.fill("#all-metrics input", "ndcg")
        page.reload()
        assert page.input_value("#all-metrics input") == "ndcg"
        page.locator("#all-metrics summary").click()
        rows = page.locator("#all-metrics tbody tr:visible").all_inner_texts()
        assert (len(rows), all("ndcg" in row for row in rows)) == (3, True)


SAVED = """
(button) => new Promise((done) => {
  const before = URL.createObjectURL;
  URL.createObjectURL = (blob) => {
    URL.createObjectURL = before;
    blob.text().then(done);
    return before.call(URL, blob);
  };
  document.querySelector(button).click();
})
"""


def saved(page: Page, button: str) -> list[list[str]]:
    """What a button saves, read by Python's own reader."""
    return list(csv.reader(io.StringIO(page.evaluate(SAVED, button).removeprefix("\ufeff"), newline="")))


def test_what_is_shown_is_saved_as_csv(browser: Browser, file: Path, run: Run) -> None:
    harmful = [change for change in run.changed() if change.kind == "harmful"]
    with opened(browser, file) as page:
        for kind in ("neutral", "beneficial"):
            page.locator(".chip", has_text=kind).locator("input").uncheck()
        head, *rows = saved(page, "#changed button.save")
        assert [row[0] for row in rows] == [change.input_id for change in harmful]
        assert head[3] == "full precision: answer"
        assert [row[3] for row in rows] == [change.before for change in harmful]
        assert [float(row[head.index("gap")]) for row in rows] == pytest.approx([one.gap for one in harmful], rel=1e-5)
        page.locator("#all-metrics summary").click()
        page.fill("#all-metrics input", "ndcg")
        _, *rows = saved(page, "#all-metrics button.save")
        assert [row[0] for row in rows] == page.locator("#all-metrics tbody tr:visible th").all_inner_texts()
        assert all("'" not in cell for row in rows for cell in row)  # numbers stay numbers


def test_no_cell_of_csv_begins_like_a_formula(browser: Browser, tmp_path: Path) -> None:
    texts = ["=1+1", "+1 (=HYPERLINK)", "-2+3", "@SUM(A1)", 'a "quoted", text']
    run = search_run(tmp_path, {f"{text}{row}": text for row in range(4) for text in texts}, noise=30)
    file = tmp_path / "report.html"
    assert cli("report", run.path, "-o", file)[0] == 0
    with opened(browser, file) as page:
        _, *rows = saved(page, "#changed button.save")
    assert {row[1].removeprefix("'") for row in rows} == set(texts)
    assert not [cell for row in rows for cell in row[:2] if cell.startswith(("=", "+", "-", "@"))]
