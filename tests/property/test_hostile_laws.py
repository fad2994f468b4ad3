"""Whatever a file holds, reading it gives a value or an error of ours: no traceback, no hang, no damage unnoticed."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdrift.base.errors import QuantDriftError
from quantdrift.runs.folder import read_run
from support.command_line import cli
from support.finished_samples import DATE, question, write_samples, write_trec
from support.finished_samples import A as LISTS
from support.hostile_samples import adopt_evidence, mutate_lines, mutate_table, write_hostile_json
from support.written_samples import EVIDENCE, PROBE, RECORD, Written, record, write_all


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    return write_all(tmp_path_factory.mktemp("written"))


@pytest.fixture
def place(written: dict[str, Written], name: str) -> Iterator[Written]:
    """A file that a test may damage; afterwards it is whole again."""
    whole = written[name].file.read_bytes()
    yield written[name]
    written[name].file.write_bytes(whole)


NAMES = (RECORD, EVIDENCE, PROBE, "check", "router", "baseline", "allocation")


@pytest.mark.parametrize("name", NAMES)
def test_a_bit_that_flips_is_noticed_or_changes_nothing(place: Written) -> None:
    whole, content = place.file.read_bytes(), place.content()

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 8 * len(whole) - 1))
    def flip(bit: int) -> None:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        place.file.write_bytes(damaged)
        try:
            read = place.content()
        except QuantDriftError:
            return
        assert read == content

    flip()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_cut_short_is_refused(place: Written) -> None:
    whole = place.file.read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 2):  # the last byte may be a line end
        place.file.write_bytes(whole[:length])
        with pytest.raises(QuantDriftError):
            place.content()


@pytest.mark.parametrize("name", [EVIDENCE, PROBE])
def test_a_file_of_another_run_is_refused(place: Written, name: str) -> None:
    other = (place.file.parent.with_name("other") / name).read_bytes()
    if name == PROBE:  # the other run has the same one
        other += b"\0"
    place.file.write_bytes(other)
    with pytest.raises(QuantDriftError, match="comes from another run"):
        place.content()


@pytest.mark.parametrize("name", [n for n in NAMES if n not in {EVIDENCE, PROBE}])
def test_every_value_is_sealed(place: Written) -> None:
    """Also those that only tell why, such as the mean in a baseline."""
    content = json.loads(place.file.read_bytes())
    for key in content:
        place.file.write_text(json.dumps({**content, key: "changed"}), encoding="utf-8")
        with pytest.raises(QuantDriftError):
            place.content()


# --- what somebody made ------------------------------------------------------------------------------


EXAMPLES = int(os.environ.get("QUANTDRIFT_HOSTILE", "12"))
"""Mutants of each kind of file, always the same ones; a third of a second each."""


def typed(*arguments: object) -> None:
    """A command line in this process; only what main() does not turn into one line escapes."""
    assert cli(*arguments)[0] in {0, 1, 2, 3, 4}  # of the gate, at most


Act = Callable[..., object]


def either(seed: int, act: Act, *arguments: object) -> None:
    try:
        act(*arguments)
    except QuantDriftError:
        return
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


def commands(run: Path, good: Path, written: dict[str, Written]) -> list[tuple[object, ...]]:
    """What reads a run, as it is typed."""
    check, baseline = written["check"].file, written["baseline"].file
    return [
        ("metrics", run, good, "--markdown"),
        ("metrics", run, "--per-input"),
        ("compare", good, run),
        ("diff", good, run, "--arms", "reference,candidate"),
        ("certify", run, "--check", check, "--json"),
        ("route", run, good, "--json"),
        ("metrics", run, "--by", "separation"),
        ("law", good, run),
        ("contenders", run, good, "--json"),
        ("gate", run, "--baseline", baseline),
        ("show", run, "--json"),
        ("report", run, "-o", run.with_suffix(".html")),
    ]


def test_a_hostile_record(written: dict[str, Written], tmp_path: Path) -> None:
    place = written[RECORD].file
    content = json.loads(place.read_text(encoding="utf-8"))
    run = shutil.copytree(place.parent, tmp_path / "run")
    for seed in range(EXAMPLES):
        rng = random.Random(seed)
        search = {**content, **record(classes=False)}
        whole = content if seed % 2 else search
        write_hostile_json(rng, run / RECORD, whole, seal=rng.random() < 0.8)
        either(seed, read_run, run)
        line = rng.choice(commands(run, place.parent, written))
        either(seed, typed, *line)


def test_hostile_evidence(written: dict[str, Written], tmp_path: Path) -> None:
    place = written[RECORD].file
    for seed in range(EXAMPLES):
        rng = random.Random(seed)
        run = shutil.copytree(place.parent, tmp_path / str(seed))
        mutate_table(rng, run / EVIDENCE)
        adopt_evidence(run)
        either(seed, lambda run: read_run(run).evidence(), run)
        line = rng.choice(commands(run, place.parent, written))
        either(seed, typed, *line)


@pytest.mark.parametrize("name", ["check", "router", "baseline", "allocation"])
def test_a_hostile_file_of_ours(written: dict[str, Written], name: str) -> None:
    place = written[name]
    run = written[RECORD].file.parent
    whole = place.file.read_bytes()
    content = json.loads(whole)
    lines = {
        "check": ("certify", run, "--check", place.file),
        "router": None,
        "baseline": ("gate", run, "--baseline", place.file, "--json"),
        "allocation": None,
    }
    try:
        for seed in range(EXAMPLES):
            rng = random.Random(seed)
            write_hostile_json(rng, place.file, content, seal=rng.random() < 0.8)
            either(seed, place.content)
            if (line := lines[name]) is not None and seed % 4 == 0:
                either(seed, typed, *line)
    finally:
        place.file.write_bytes(whole)


WORDS = (
    *("", "x", "nan", "inf", "-inf", "1e999", "-1e999", "1e308", "-1e308", "9" * 30, "9" * 5_000),
    *("0", "-1", "2", "q1", "d1", "Q0", "\x1b[31m", "\u202e", "1_0", "\uff10", "0x1", "true", "{}", "\0"),
)


MTEB: dict[str, Any] = {
    "rankings": LISTS,
    "labels": [["a", "b", "a"], ["a", "a", "b"]],
    "scores": [[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]],
    "neighbours": {"a-b": [{"corpus_id": 0, "score": 0.5}, {"corpus_id": 1, "score": 0.25}]},
    "similarities": {"cosine": [0.5, 0.25]},
}


@pytest.mark.parametrize("kind", ["trec", "json", "lm-eval", *MTEB])
def test_a_hostile_result_of_a_harness(tmp_path: Path, kind: str) -> None:
    for seed in range(EXAMPLES):
        rng = random.Random(seed)
        a, b = tmp_path / f"a{seed}", tmp_path / f"b{seed}"
        if kind == "trec":
            text = write_trec(a, LISTS).read_text(encoding="utf-8")
            b.write_text(mutate_lines(rng, text, WORDS), encoding="utf-8")
        elif kind == "json":
            a.write_text(json.dumps(LISTS), encoding="utf-8")
            write_hostile_json(rng, b, LISTS, seal=False)
        elif kind == "lm-eval":
            whole = [question(number, [-0.5, -1.5, -2.5]) for number in range(3)]
            for place in (a, b):
                write_samples(place, "t", whole, date=DATE)
                results = {"results": {}, "configs": {"t": {"num_fewshot": 0}}, "model_name": "m"}
                (place / f"results_{DATE}.json").write_text(json.dumps(results))
            if seed % 4 == 0:
                write_hostile_json(rng, b / f"results_{DATE}.json", results, seal=False)
            else:
                first = tmp_path / "first"
                write_hostile_json(rng, first, whole[0], seal=False)
                lines = [first.read_text(encoding="utf-8"), *map(json.dumps, whole[1:])]
                (b / f"samples_t_{DATE}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        else:
            whole = {"mteb_model_meta": {"model_name": "m"}, "default": {"test": MTEB[kind]}}
            a.write_text(json.dumps(whole), encoding="utf-8")
            write_hostile_json(rng, b, whole, seal=False)
        first, second = (a, b) if seed % 2 else (b, a)
        more = rng.choice(((), ("--common",), ("--complete",), ("--json",), ("--out", tmp_path / "out")))
        either(seed, typed, "diff", first, second, *more)
        if seed % 5 == 0:
            either(seed, typed, "gate", first, second, "--json")
