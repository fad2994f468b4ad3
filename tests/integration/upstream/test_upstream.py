"""What docs/upstream hands over to other projects runs as it stands there, and says what quantdrift says."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.evidence.record import Evidence
from quantdrift.features.card.card import card_of
from quantdrift.finished.diff import diff_runs
from quantdrift.finished.formats import read_finished
from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.metrics import parse_metric
from quantdrift.metrics.keys import drift_keys
from quantdrift.runs.changes import changed_inputs
from support.places import ROOT
from support.warm import warm
from unit.report.report_samples import rendered, tables, written

UPSTREAM = ROOT / "docs" / "upstream"


def python(*arguments: str | Path, cwd: Path, **variables: str) -> str:
    """Run Python in a folder, without what our own pytest.ini says; what it prints."""
    done = warm().run(*arguments, cwd=cwd, PYTHONDONTWRITEBYTECODE="1", **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kinds(evidence: Evidence) -> dict[str, int]:
    """How many answers changed."""
    changed = [change.kind for change in changed_inputs(evidence)]
    return {kind: changed.count(kind) for kind in ("harmful", "beneficial", "neutral")} | {"all": len(changed)}


def own_tests(folder: str, tmp_path: Path, before: str = "") -> None:
    """Run the tests that stand in a hand-over, from there."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ["-c", str(tmp_path / "pytest.ini"), "--rootdir=.", "--import-mode=importlib", "-pno:cacheprovider"]
    script = f"import sys, pytest; sys.path.insert(0, '.'){before}; sys.exit(pytest.main({[*options, 'tests']}))"
    assert " passed" in python("-c", script, cwd=UPSTREAM / folder)


def test_what_is_handed_over_is_formatted_as_its_targets_are() -> None:
    python("-m", "ruff", "format", "--isolated", "--check", ".", cwd=UPSTREAM)
    python("-m", "ruff", "check", "--isolated", "--ignore=I001", ".", cwd=UPSTREAM)  # their own names sort otherwise


# --- lm-eval -----------------------------------------------------------------------------------------


def test_the_flip_script_passes_its_own_tests(tmp_path: Path) -> None:
    own_tests("lm-eval", tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is an extra")
def test_the_flip_script_counts_what_quantdrift_counts_in_samples_of_lm_eval(tmp_path: Path) -> None:
    # lm-eval and torch are extras
    from integration.quantdrift_lm_eval import lm_eval_samples_maker as maker  # noqa: PLC0415

    tracker = pytest.importorskip("lm_eval.loggers").EvaluationTracker
    model = maker.save_model(tmp_path / "full")
    _noisy(model, tmp_path / "noisy")
    tasks = maker.write_tasks(tmp_path / "tasks", model)
    asked = ("questions", "more_questions", "informed", "named", "last_word", "texts", "sums")
    for name in ("full", "noisy"):
        logs = tracker(output_path=str(tmp_path / f"out-{name}"))
        arguments = {"pretrained": str(tmp_path / name)}
        results = maker.evaluate("hf", tasks, asked, model_args=arguments, evaluation_tracker=logs)
        samples = results.pop("samples")
        logs.save_results_aggregated(results=results, samples=samples)
        for task, logged in samples.items():
            logs.save_results_samples(task_name=task, samples=logged)
    script, runs = UPSTREAM / "lm-eval" / "scripts" / "compare_flips.py", ("out-full", "out-noisy")
    rows = json.loads(python(script, *runs, "--json", cwd=tmp_path))
    parts = {part.name: part for part in diff_runs(*(read_finished(tmp_path / run) for run in runs)).parts}
    assert len(rows) == len(parts) == 8
    flips = 0
    for row in rows:
        part = parts.get(row["task"]) or parts[f"{row['task']} ({row['filter']})"]
        if part.evidence is None:  # a perplexity has no answer
            assert (row["changed"], row["metric"]) == (None, None)
            continue
        ours = kinds(part.evidence)
        assert row["changed"] == ours["all"], row["task"]
        before, after = part.values[row["metric"]]
        assert (row["before"], row["after"]) == (before.mean(), after.mean())
        assert row["lost"] == ((before == 1) & (after == 0)).sum()
        if row["metric"] != "acc_norm":  # it judges another choice than that of the highest log-likelihood
            assert (row["lost"], row["won"]) == (ours["harmful"], ours["beneficial"]), row["task"]
        flips += row["changed"]
    assert flips > 20
    shutil.rmtree(next((tmp_path / "out-noisy").iterdir()))
    refused = subprocess.run([sys.executable, script, *runs], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")


def _noisy(model: str, place: Path) -> None:
    """A copy of a model with every weight a little off."""
    import torch  # noqa: PLC0415 -- an extra
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: PLC0415 -- likewise

    loaded: Any = LlamaForCausalLM.from_pretrained(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in loaded.parameters():
            weight.add_(0.1 * torch.randn_like(weight) * weight.abs().mean())
    loaded.save_pretrained(place)
    PreTrainedTokenizerFast.from_pretrained(model).save_pretrained(place)


# --- mteb --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mteb") is None, reason="mteb is an extra")
def test_the_keys_for_mteb_pass_their_own_tests(tmp_path: Path) -> None:
    own_tests("mteb", tmp_path, "; import mteb.results; mteb.results.__path__.append('mteb/results')")


@pytest.mark.slow
def test_the_keys_for_mteb_are_quantdrifts(monkeypatch: pytest.MonkeyPatch) -> None:
    results = pytest.importorskip("mteb.results")
    monkeypatch.setattr(results, "__path__", [*results.__path__, str(UPSTREAM / "mteb" / "mteb" / "results")])
    from mteb.results.drift import calculate_drift_scores  # noqa: PLC0415 -- it stands there only now

    rng = np.random.default_rng(0)  # coarse scores, so that many tie; some queries without a relevant document
    docs, queries = [f"d{n}" for n in range(15)], [f"q{n}" for n in range(60)]
    before, after = ({q: dict(zip(docs, rng.integers(0, 12, 15) / 8, strict=True)) for q in queries} for _ in range(2))
    qrels = {q: {str(d): 1 for d in rng.choice(docs, rng.integers(0, 3), replace=False)} for q in queries}
    theirs = calculate_drift_scores(before, after, qrels)
    ours = evidence_of_rankings(before, after, qrels=qrels, position=str)
    names = ("flip@1", "gold_lost@1", "gold_lost@10", "gold_gained@1", "gold_gained@10")
    keys = drift_keys(ours, map(parse_metric, names), warn=pytest.fail)
    assert theirs == {"drift_n_inputs": 60, **{key: pytest.approx(value) for key, value in keys.items()}}


def test_the_description_for_mteb_is_no_longer_than_it_allows() -> None:
    page = (UPSTREAM / "mteb" / "README.md").read_text(encoding="utf-8")
    quoted = "\n".join(line[2:] for line in page.splitlines() if line.startswith(">"))
    assert 500 < len(quoted) <= 2000


# --- the card of a model -----------------------------------------------------------------------------


def test_the_section_stands_in_the_hubs_own_template(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="the extra 'models' is not installed")
    template = (Path(hub.__file__).parent / "templates" / "modelcard_template.md").read_text(encoding="utf-8")
    section = (UPSTREAM / "model-card" / "quantization_section.template").read_text(encoding="utf-8")
    whole = template.replace("## Model Examination", f"{section}## Model Examination")
    assert whole.count(section) == 1
    card = card_of([written(tmp_path / "a"), written(tmp_path / "b", "W8-g128-rtn", same=True)])
    data = hub.ModelCardData(**card.metadata)
    changes = card.section.partition("\n")[2]
    filled = hub.ModelCard.from_template(data, template_str=whole, quantization_changes=changes)
    ((head, *rows),) = tables(rendered(filled.text))
    assert "right first result lost" in head
    assert [row[head.index("quantized as")] for row in rows] == ["W4-g128-rtn", "W8-g128-rtn"]
    assert (filled.data.base_model, filled.data.base_model_relation) == ("org/MiniLM", "quantized")
    bare = hub.ModelCard.from_template(data, template_str=whole)
    between = bare.text.partition("What quantization changed")[2].partition("## Model Examination")[0]
    assert "[More Information Needed]" in between
