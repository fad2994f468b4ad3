"""A corpus in shards gives the run that it gives in memory, whoever works through it and whoever is killed."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.asking.streamed_search import score_shard
from quantdrift.base.errors import DataError
from quantdrift.evidence.record import Evidence
from quantdrift.runs.folder import read_run
from support.beir_folder import numbered, write_beir_folder
from support.small_evidence import assert_same
from support.tiny_command_line import Run, one_thread, place, quantdrift, text

__all__ = ["one_thread", "place", "quantdrift"]

psutil: Any = pytest.importorskip("psutil")

N = 60
SHARDS = ("--shard", "8")


@pytest.fixture(scope="module")
def corpus(place: Path) -> Path:
    """Sixty documents in two files; the same in memory is beside it."""
    documents = numbered("d", [text(3000 + row, 9) for row in range(N)])
    queries = numbered("q", [text(row, 5) for row in range(40)])
    labels = {f"q{row}": [f"d{row}"] for row in range(40)}
    write_beir_folder(place / "whole", queries, documents, labels)
    folder = write_beir_folder(place / "sharded", queries, documents, labels)
    rows = (folder / "corpus.jsonl").read_text().split("\n")
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus").mkdir()
    (folder / "corpus" / "0.jsonl").write_text("\n".join(rows[:24]))
    (folder / "corpus" / "1.jsonl").write_text("\n".join(rows[24:]))
    return folder


def evidence(folder: Path | str) -> Evidence:
    return read_run(Path(folder)).evidence()


@pytest.mark.parametrize("scheme", ["W3", "W3-gptq+calib=20", "W3+query"])
def test_shards_give_what_memory_gives(quantdrift: Run, corpus: Path, scheme: str) -> None:
    """But for the last digits, as the texts that share a batch are others."""
    quantdrift("run", f"TINY@{scheme}", "--data", "ROOT/whole", "--out", "whole", "-k", "20")
    quantdrift("run", f"TINY@{scheme}", "--data", "ROOT/sharded", "--out", "parts", "-k", "20", *SHARDS)

    whole, parts = evidence("whole"), evidence("parts")
    for side in ("reference_top", "candidate_top"):
        left, right = getattr(whole, side), getattr(parts, side)
        np.testing.assert_allclose(left.reference_scores, right.reference_scores, atol=2e-6)
        np.testing.assert_allclose(left.candidate_scores, right.candidate_scores, atol=2e-6)
        assert (whole.item_ids[left.items[:, 0]] == parts.item_ids[right.items[:, 0]]).all()
    assert whole.noise is not None
    assert parts.noise is not None
    assert parts.noise.epsilon.max() < 1e-5
    first, other = (json.loads(Path(name, "run.json").read_text()) for name in ("whole", "parts"))
    for metric in ("flip@1", "gold_lost@10", "ndcg@10", "noise_floor"):
        assert first["metrics"][metric]["value"] == pytest.approx(other["metrics"][metric]["value"], abs=1e-6)
    assert other["data"]["shards"] == 8
    assert other["data"]["n_documents"] == N


def test_a_run_that_was_interrupted_goes_on_and_makes_a_damaged_shard_again(
    quantdrift: Run, corpus: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []

    def scored(job: Any, flow: Any, shard: Any) -> bytes:
        if len(done) == 3:
            raise DataError("stopped here")
        done.append(shard.start)
        return score_shard(job, flow, shard)

    line = ("run", "TINY@W2", "--data", "ROOT/sharded", *SHARDS)
    monkeypatch.setattr("quantdrift.asking.streamed_search.score_shard", scored)
    assert "stopped here" in quantdrift(*line, "--out", "again", code=2)
    assert not Path("again").exists()
    kept = sorted((place / "cache" / "shards").rglob("*.npz"))
    assert len(kept) == 3
    kept[0].write_bytes(kept[0].read_bytes()[:-200])

    done.append(-1)
    quantdrift(*line, "--out", "again")

    assert len(done) == 4 + 6
    assert not list((place / "cache" / "shards").rglob("*.npz"))  # a run that is written needs them no more
    quantdrift(*line, "--out", "fresh", "--no-cache")
    assert_same(evidence("again"), evidence("fresh"))


def test_only_with_keep_are_embeddings_of_documents_kept(
    quantdrift: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "own"))
    quantdrift("run", "TINY@W4", "--data", "ROOT/sharded", "--out", "one", *SHARDS)
    assert len(list((tmp_path / "own").rglob("*.npy"))) == 2 + 2  # queries of both arms; the noise floor
    quantdrift("run", "TINY@W4", "--data", "ROOT/sharded", "--out", "two", "--keep", *SHARDS)
    assert len(list((tmp_path / "own").rglob("*.npy"))) == 4 + 8  # the reference's documents
    assert_same(evidence("one"), evidence("two"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run TINY@W3.5+gap --data ROOT/sharded", "gap chooses widths on a corpus in memory. Choose them on a part"),
        ("run TINY@W4+emb=int8 --data ROOT/sharded", "leave +emb=, +dim= and +index= out"),
        ("run 'TINY vs openai:http://localhost:9/v1#m' --data ROOT/sharded", "a server is asked by one process"),
        ("run TINY@W4 --shortlist x --data ROOT/sharded", "--shortlist is for a corpus in memory"),
        ("run TINY@W4 --task PythonDocsSmall --workers 2", "expected --data"),
        ("allocate TINY@W3.5+gap --data ROOT/sharded", "in shards, which quantdrift run and quantdrift study run take"),
    ],
)
def test_what_takes_a_corpus_in_memory_is_refused(quantdrift: Run, corpus: Path, line: str, message: str) -> None:
    assert message in quantdrift(*shlex.split(line), code=2)


def test_a_study_takes_shards(quantdrift: Run, corpus: Path, place: Path) -> None:
    parts = f"{{folder: {place}/sharded, sizes: [10], name: parts}}"
    Path("study.yaml").write_text(
        f"models: [{place}/tiny]\nschemes: [W4, W3.5+gap]\ndata: [{place}/sharded, {place}/whole, {parts}]\n"
    )
    quantdrift("study", "run", "study.yaml", "--out", "study", code=1)
    status = quantdrift("study", "status", "study", "--json", quiet=False)
    assert "W3.5-g128-rtn+gap: gap chooses widths on a corpus in memory" in status
    assert "is a corpus in shards, which is searched as a whole" in status
    runs = [read_run(cell) for cell in sorted(Path("study/cells").glob("*W4*"))]
    assert len(runs) == 2
    assert len({run.record["metrics"]["flip@1"]["value"] for run in runs}) == 1


def test_texts_are_found_in_shards_when_asked_for(quantdrift: Run, corpus: Path) -> None:
    quantdrift("run", "TINY@W2", "--data", "ROOT/sharded", "--out", "shown", "--no-cache", *SHARDS)

    assert "To see texts" in quantdrift("show", "shown", quiet=False)
    changed = json.loads(quantdrift("show", "shown", "--data", "ROOT/sharded", "--json", quiet=False))["changed"]
    assert changed
    assert all(query["text_before"] == text(3000 + int(query["before"][1:]), 9) for query in changed)
    assert "expected the data" in quantdrift("show", "shown", "--data", "ROOT/whole", quiet=False, code=2)


# --- processes, and what is killed ----------------------------------------------------------------


class Command:
    """`quantdrift run` in a process of its own, with the processes that it starts."""

    def __init__(self, place: Path, out: Path, *more: str) -> None:
        line = ["run", f"{place}/tiny@W6", "--data", f"{place}/sharded", "--out", str(out), *SHARDS, *more]
        self.cache, self.errors = out.with_name("cache"), out.with_suffix(".err")
        environment = {**os.environ, "QUANTDRIFT_CACHE": str(self.cache), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        with self.errors.open("w") as errors:
            self.process = psutil.Popen(
                [sys.executable, "-m", "quantdrift", *line], env=environment, stdout=subprocess.DEVNULL, stderr=errors
            )

    def workers(self, word: str) -> list[Any]:
        """Processes that come from it, at any depth, with a word in their command line."""
        return [child for child in self.process.children(recursive=True) if word in " ".join(child.cmdline())]

    @property
    def kept(self) -> int:
        """How many shards are kept."""
        return len(list((self.cache / "shards").rglob("[!.]*.npz")))

    def until_kept(self, n: int) -> None:
        """Wait until so many shards are kept."""
        end = time.monotonic() + 120
        while self.kept < n:
            assert time.monotonic() < end and self.process.poll() is None, self.errors.read_text()  # noqa: PT018
            time.sleep(0.005)

    def ended(self) -> str:
        """What it said, when it has ended well."""
        assert self.process.wait(timeout=180) == 0, self.errors.read_text()
        return self.errors.read_text()


@pytest.fixture
def expected(quantdrift: Run, corpus: Path) -> Evidence:
    """Of one process."""
    quantdrift("run", "TINY@W6", "--data", "ROOT/sharded", "--out", "expected", *SHARDS)
    return evidence("expected")


@pytest.mark.very_slow
def test_whatever_is_killed_the_run_comes_out_the_same(place: Path, tmp_path: Path, expected: Evidence) -> None:
    """First a worker, which is replaced; then all of it, and the same command goes on."""
    more = ("--workers", "2")
    command = Command(place, tmp_path / "run", *more)
    command.until_kept(1)
    command.workers("multiprocessing.spawn")[0].kill()
    command.until_kept(4)
    workers = command.workers("multiprocessing.spawn")
    command.process.kill()
    command.process.wait()
    kept = command.kept
    assert not psutil.wait_procs(workers, timeout=60)[1]  # nobody goes on in the background

    errors = Command(place, tmp_path / "run", *more).ended()

    assert f"{kept} of 8 shards are there from a run that was interrupted" in errors
    assert_same(evidence(tmp_path / "run"), expected)
