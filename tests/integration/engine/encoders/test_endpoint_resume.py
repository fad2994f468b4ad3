"""Runs that go on where they were, and models that change behind their name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("httpx", reason="httpx is not installed")

from quantdrift import perturbation
from quantdrift.engine import store as embeddings
from quantdrift.runs import Run
from support.embedding_server import Server, of_letters, of_odd_letters, serving
from support.endpoint_samples import many, run_servers


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(one=of_letters, two=of_odd_letters) as found:
        yield found


def measured(server: Server, out: Path, **options: Any) -> Run:
    return run_servers(server.name("one"), server.name("two"), out, **options)


class Interrupting:
    """Progress that is interrupted, as by Ctrl-C, when so many inputs of a stage are done."""

    def __init__(self, stage: str, after: int) -> None:
        self._stage, self._after = stage, after

    @contextmanager
    def stage(self, name: str, _total: int) -> Iterator[Callable[[int], None]]:
        done = 0

        def tell(steps: int) -> None:
            nonlocal done
            done += steps
            if name == self._stage and done >= self._after:
                raise KeyboardInterrupt

        yield tell


def test_a_run_that_was_interrupted_goes_on_where_it_was(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantdrift.engine.measure.CHUNK_ELSEWHERE", 32)
    data, cache = many(100), tmp_path / "cache"
    stopped = Interrupting("candidate: document embeddings", 64)
    with pytest.raises(KeyboardInterrupt):
        measured(server, tmp_path / "run", dataset=data, cache=cache, progress=stopped)
    assert not (tmp_path / "run").exists()
    server.forget()
    # the number of inputs in a request is no reason to ask again
    found = measured(server, tmp_path / "run", dataset=data, cache=cache, batch_size=5)
    texts = [text for text in server.texts() if text in set(data.documents)]
    assert len(texts) == len(set(texts)) == 100 - 64
    assert not set(data.queries) & set(server.texts())
    fresh = measured(server, tmp_path / "fresh", dataset=data)
    np.testing.assert_array_equal(perturbation.epsilon(found.evidence()), perturbation.epsilon(fresh.evidence()))
    assert embeddings.CHUNK_ELSEWHERE < embeddings.CHUNK


def test_another_model_behind_the_name_is_not_taken_for_the_first(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = measured(server, tmp_path / "a", cache=cache)
    server.models["two"] = lambda texts: of_letters([text[1:] for text in texts])
    server.forget()
    second = measured(server, tmp_path / "b", cache=cache)
    assert len(server.texts()) == 2 * 16 + 11  # all texts again, to the one that changed
    prints = [run.record["model"]["candidate_fingerprint"] for run in (first, second)]
    assert prints[0] != prints[1]
    (note,) = second.record["data"]["warnings"]
    assert note.startswith(f"another model answers to {server.name('two')} than on 20")
    fresh = measured(server, tmp_path / "c")
    np.testing.assert_array_equal(perturbation.epsilon(second.evidence()), perturbation.epsilon(fresh.evidence()))
    server.models["two"] = of_odd_letters
    server.forget()
    back = measured(server, tmp_path / "d", cache=cache)
    assert len(server.texts()) == 2 * 16
    assert back.record["model"]["candidate_fingerprint"] == prints[0]
    np.testing.assert_array_equal(perturbation.epsilon(back.evidence()), perturbation.epsilon(first.evidence()))


def test_a_server_that_does_not_repeat_itself_is_said_to_hide_other_models(server: Server, tmp_path: Path) -> None:
    turns = iter(range(1000))

    def one_model_or_another(texts: Sequence[str]) -> NDArray[np.float32]:
        return of_letters([text[next(turns) % 3 :] for text in texts])

    server.models["two"] = one_model_or_another
    (note,) = measured(server, tmp_path / "run").record["data"]["warnings"]
    assert note.startswith(f"{server.name('two')} answered the same texts twice and differently")
    server.models["two"] = of_odd_letters
    assert measured(server, tmp_path / "run").record["data"]["warnings"] == []


@pytest.mark.parametrize("role", ["query", "document"])
def test_what_is_put_before_a_text_decides_what_is_kept(server: Server, tmp_path: Path, role: str) -> None:
    for prefix in ("", "zzz ", "qqq "):
        options = {"prefixes": {role: prefix}}
        found = measured(server, tmp_path / "a", cache=tmp_path / "cache", **options)
        fresh = measured(server, tmp_path / "b", **options)
        tops = [run.evidence().reference_top.reference_scores for run in (found, fresh)]
        np.testing.assert_array_equal(*tops)
