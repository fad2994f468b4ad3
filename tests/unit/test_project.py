"""The files beside the code: versions, workflows, pinned actions and forms; the website, and the table of formats."""

import json
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

import quantdrift
from support.comparison_samples import evidence_of, flipped, run_of, scores
from support.places import ROOT, module_at

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = set(re.findall(r"^([a-z][a-z -]*):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
TARGETS = {target for line in TARGETS for target in line.split()}
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


def loaded(path: Any) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_version_and_the_license_are_the_same_everywhere() -> None:
    citation = loaded(ROOT / "CITATION.cff")
    assert PROJECT["version"] == quantdrift.__version__ == citation["version"]
    assert PROJECT["license"] == citation["license"]
    assert f"## {quantdrift.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_paper_is_cited_as_the_readme_names_it() -> None:
    paper = loaded(ROOT / "CITATION.cff")["preferred-citation"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert paper["title"] in readme
    assert ", ".join(author["family-names"] for author in paper["authors"]) in readme


def test_addresses_are_those_of_the_repository_that_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    # what builds the package is there only while it is built
    interface = SimpleNamespace(MetadataHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["Addresses"]()

    def urls() -> Any:
        metadata: dict[str, Any] = {}
        hook.update(metadata)
        return metadata["urls"]

    monkeypatch.delenv("QUANTDRIFT_REPOSITORY", raising=False)
    assert urls() == {"Homepage": "https://pypi.org/project/quantdrift/"}
    monkeypatch.setenv("QUANTDRIFT_REPOSITORY", "https://example.org/someone/quantdrift/")
    assert urls()["Issues"] == "https://example.org/someone/quantdrift/issues"


def test_what_the_demo_prints_can_be_run() -> None:
    # it ends with `quantdrift report`
    assert "quantdrift[mteb,report,faiss]" in PROJECT["optional-dependencies"]["demo"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_there_is_and_may_do_little(path: Any) -> None:
    workflow = loaded(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"]
        allowed = {"website": {"id-token": "write", "pages": "write"}, "publish": {"id-token": "write"}}
        assert job.get("permissions") == allowed.get(name)
        assert not ({*[job.get("needs")]} - {None} - workflow["jobs"].keys())
        for step in job["steps"]:
            for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", "")):
                assert target in TARGETS
            assert "${{" not in step.get("run", ""), "what stands in an expression would be run"


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda path: path.stem)
def test_an_action_is_pinned_by_its_commit(path: Any) -> None:
    """A tag can be moved, a commit cannot; its version stands behind it."""
    text = path.read_text(encoding="utf-8")
    pinned = re.findall(r"uses: ([\w/.-]+@[0-9a-f]{40} # v[\d.]+)$", text, re.MULTILINE)
    assert re.findall(r"uses: (.+)", text) == pinned != []


def test_every_python_of_the_classifiers_is_tested() -> None:
    jobs = loaded(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert jobs["wheel"]["strategy"]["matrix"]["python"] == named
    tried = jobs["versions"]["strategy"]["matrix"]["include"]
    assert {run["python"] for run in tried if run["versions"] == "newest"} == {*named}
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" >= min(named)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_is_whole(path: Any) -> None:
    form = loaded(path)
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
    ids = [field["id"] for field in fields]
    assert len({*ids}) == len(ids) > 0
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_every_error_made_by_hand_can_still_be_made() -> None:
    """`make mutants` makes each of them."""
    for error in loaded(ROOT / "tests" / "mutants" / "mutants.yaml"):
        assert (ROOT / error["file"]).read_text(encoding="utf-8").count(error["old"]) == 1, error["why"]
        assert all((ROOT / place.partition("::")[0]).exists() for place in error["tests"].split()), error["why"]


# --- the website -------------------------------------------------------------------------------------


DOCS = ROOT / "docs"


BUILD = SimpleNamespace(**runpy.run_path(str(DOCS / "website" / "build.py")))
"""The script that builds it."""


def pages_of(nav: Any) -> Iterator[str]:
    for entry in nav:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else pages_of(target)


def test_every_page_has_a_line_in_the_navigation() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    sources = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    left_out = (DOCS / "adr", DOCS / "website")
    pages = {
        BUILD.place_of(source).relative_to(BUILD.PAGES).with_suffix(".md").as_posix()
        for source in sources
        if source.parent not in left_out
    }
    made = {"adr/README.md", "examples/README.md", "reference/api.md"}
    assert sorted(pages_of(nav)) == sorted(pages | made)


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide" / "index.html").write_text('<h1 id="top"></h1><a href="../#start"></a><img src="no.png">')
    (tmp_path / "index.html").write_text(
        '<h1 id="start"></h1><a href="guide/#top"></a><a href="guide/#end"></a><a href="https://example.org/x"></a>'
    )
    assert sorted(BUILD.broken(tmp_path)) == [
        "guide/index.html: no.png is not there",
        "index.html: guide/#end names no heading",
    ]


def test_no_line_parts_a_number_from_its_percent_sign_and_code_is_copied_as_it_stands() -> None:
    code = "    flip@1 <= 25 %\n\n```text\n5 % of 9\n```\n\n`gold_lost@1 <= 3 %`"
    assert BUILD.together(f"4.5 % (2.6 to 7.7)\n{code}\n\n3 %") == f"4.5\xa0% (2.6 to 7.7)\n{code}\n\n3\xa0%"


# --- the table of formats ----------------------------------------------------------------------------


TABLE = module_at(ROOT / "docs" / "table" / "table.py")


def test_the_page_is_that_of_the_rows() -> None:
    rows = TABLE.rows_there()
    assert TABLE.PAGE.read_text(encoding="utf-8") == TABLE.page(rows), "python docs/table/table.py"
    assert all(row.file.exists() for row in rows)
    assert len({row.signature for row in rows}) == len(rows) == len(list(TABLE.ROWS.glob("*.json")))


def test_a_row_is_what_the_run_says(tmp_path: Path) -> None:
    figures = {
        "flip@1": {"value": 0.065, "low": 0.04, "high": 0.11, "n": 60},
        "change.ndcg@10": {"value": None, "n": 0},
    }
    evidence = evidence_of(scores(), flipped(scores(), range(4)))
    run = run_of(tmp_path / "run", evidence, metrics=figures, bits_per_weight={"linear_with_scales": 4.25})
    row = TABLE.row_of(run.path)
    assert (row.model, row.scheme, row.data, row.quality) == ("minilm", "W4-g64-rtn", "corpus", None)
    assert row.signature.startswith("quantdrift:")
    with pytest.raises(KeyError):
        TABLE.page([row])  # a reader wants to know what the corpus is
    TABLE.CORPORA["corpus"] = "60 documents"
    line = next(line for line in TABLE.page([row]).splitlines() if row.scheme in line)
    assert line == f"| `W4-g64-rtn` | 4.25 bits | 6.5 % (4.0 to 11.0) |  |  | {row.verdict} |"
    with pytest.raises(ValidationError):
        TABLE.Row.model_validate({**json.loads(row.model_dump_json()), "flips_at_1": 0.1})
