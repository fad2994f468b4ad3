"""A run folder is there in full or not at all; who was measured, on what, how, and what is not compared."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.base.records import with_checksum
from quantdrift.evidence.record import Evidence
from quantdrift.measuring.flow import assemble
from quantdrift.runs.folder import find_runs, read_run, write_run
from quantdrift.runs.identity import SERVED, Identity, signature
from quantdrift.scoring.streamed import score_matrix

RECORD: dict[str, Any] = {"spec": "m@W4", "data": {"name": "corpus"}, "metrics": {}}


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    scores = np.array([[1.0, 2.0]])
    return assemble(score_matrix(scores, scores, k=2), input_ids=["q"], item_ids=["a", "b"])


def content(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize(
    ("failure", "error"), [(OSError(errno.ENOSPC, "No space left"), RunError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_a_failure_while_the_run_is_put_in_place(
    *,
    tmp_path: Path,
    evidence: Evidence,
    failure: BaseException,
    error: Any,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
) -> None:
    """Where two folders cannot be exchanged in one step, the earlier one is moved aside; then all is as it was."""
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: None)  # as on a system that cannot
    path = write_run(tmp_path / "run", evidence=evidence, record={**RECORD, "spec": "earlier"}).path
    before, rename, steps = content(path), os.rename, [0]

    def fail_once(source: Path, target: Path) -> None:
        steps[0] += 1
        if steps[0] == step:
            raise failure
        rename(source, target)

    monkeypatch.setattr("os.rename", fail_once)
    with pytest.raises(error):
        write_run(path, evidence=evidence, record=RECORD)
    assert ([entry.name for entry in tmp_path.iterdir()], content(path)) == (["run"], before)


def test_what_is_not_a_run_is_left_alone(tmp_path: Path, evidence: Evidence) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text('{"format": "quantdrift-run"}')
    (folder / "notes.txt").write_text("mine")
    before = content(folder)
    with pytest.raises(RunError, match=r"not a run: .*--out"):
        write_run(folder, evidence=evidence, record=RECORD)
    assert content(folder) == before


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b'{"format": ', "is damaged"),
        (b'{"format": "other"}', "expected the record of a run; .* holds something else"),
        (b'{"format": "quantdrift-run", "format_version": 1}', "version 1; .* Make it again: q"),
        (b'{"format": "quantdrift-run", "format_version": 2}', "its digest is missing"),
        (b"[" * 100_000 + b"]" * 100_000, "nested deeper than"),
    ],
)
def test_records_that_cannot_be_read(tmp_path: Path, record: bytes, message: str) -> None:
    (tmp_path / "run.json").write_bytes(record)
    with pytest.raises(RunError, match=message):
        read_run(tmp_path)


def test_a_damaged_run_is_not_passed_over(tmp_path: Path, evidence: Evidence) -> None:
    """Nine runs of ten, without a word, would be wrong."""
    for name in ("a", "b"):
        write_run(tmp_path / name, evidence=evidence, record=RECORD)
    damaged = tmp_path / "b" / "run.json"
    damaged.write_text(damaged.read_text()[:-20])
    with pytest.raises(RunError, match=r"b.run\.json is damaged"):
        find_runs([tmp_path])


@pytest.mark.parametrize(
    "changes",
    [
        *({"data": data} for data in (None, [], {"name": ["x"]})),
        *({"model": model} for model in (None, [])),
        {"model": {"fingerprint": []}},
        {"settings": {"similarity": 4}},
        {"spec": 4},
        {"metrics": {"flip@1": {"value": 10**400}}},
        {"data": {"name": "x", "n_documents": -1}},
        {"quantization": {"allocation": {"widths": {"layer": 2**70}}}},
        {"files": None},
    ],
)
def test_a_record_of_another_shape_is_refused(tmp_path: Path, evidence: Evidence, changes: dict[str, Any]) -> None:
    run = write_run(tmp_path / "run", evidence=evidence, record=RECORD)
    (run.path / "run.json").write_text(json.dumps(with_checksum({**run.record, **changes})))
    with pytest.raises(RunError, match=r"run\.json is damaged"):
        read_run(run.path)
    if "files" not in changes:
        with pytest.raises(RunError, match="is damaged"):
            write_run(tmp_path / "new", evidence=evidence, record={**RECORD, **changes})


# --- identities --------------------------------------------------------------------------------------


MEASURED: dict[str, Any] = {
    "spec": "minilm@W4",
    "model": {"name": "minilm", "fingerprint": "full", "candidate_fingerprint": "low"},
    "data": {"name": "corpus", "fingerprint": "texts", "split": "test", "subset": "de"},
    "settings": {
        "k": 20,
        "dtype": "torch.float32",
        "device": "cpu",
        "reading": "linear probe",
        "probe": {"C": 1.0, "digest": "probe"},
    },
}


def served(stored: Identity, here: Identity, *, candidate: bool = True) -> str:
    """The message of the refusal; empty if there is none."""
    try:
        stored.refuse_other(here, what="it", make="make", error=QuantDriftError, candidate=candidate)
    except QuantDriftError as error:
        return str(error)
    return ""


def test_a_record_is_read() -> None:
    identity = Identity.of(MEASURED)
    assert (identity.spec, identity.model, identity.data_name) == ("minilm@W4-g128-rtn", "minilm", "corpus (test)")
    assert identity.to_json() == {
        "spec": "minilm@W4-g128-rtn",
        "model_fingerprint": "full",
        "candidate_fingerprint": "low",
        "reading": "linear probe",
        "similarity": None,
        "probe": "probe",
        "data": "corpus",
        "data_fingerprint": "texts",
        "split": "test",
        "subset": "de",
        "inputs": None,
        "dtype": "torch.float32",
        "device": "cpu",
    }
    assert Identity.from_json(identity.to_json()) == identity.brief()
    assert identity.meaning == {"dtype": "torch.float32", "reading": "linear probe"}
    assert set(identity.software) == {"device", "probe"}
    with pytest.raises(RunError, match="minilm@W3"):
        Identity.of(MEASURED, spec="minilm@W3")


def test_ids_are_told_apart_whatever_their_order() -> None:
    asked = (["a", "b"], ["b", "a"], ["ab"], ["a"], ["a", "b", "b"], [])
    digests = [Identity.of(input_ids=ids).inputs for ids in asked]
    assert (digests[0], len(set(digests))) == (digests[1], 5)


def test_what_two_runs_have_to_share() -> None:
    first = Identity.of(MEASURED)
    settings = {**MEASURED["settings"], "k": 5, "device": "cuda", "prompt": "query: "}
    other = replace(first, spec="minilm@W3", candidate_fingerprint="odd", settings=settings)
    assert first.differences(other) == ["setting prompt: nothing in A, query:  in B"]
    assert first.differences(other, ("software",)) == ["device differs: cpu in A, cuda in B"]
    other = replace(first, model="bge", model_fingerprint="other", data_fingerprint="others")
    assert first.differences(other, sides=("then", "now")) == [
        "reference model: minilm, now bge (digest full then, other now)",
        "data: corpus (test) (digest texts then, others now): ids, texts or labels are others, or their order",
    ]


@pytest.mark.parametrize("name", ["reading", "similarity", "probe", "candidate_fingerprint"])
def test_of_what_is_served_only_what_both_know_is_compared(name: str) -> None:
    stored = Identity.from_json({**Identity.of(MEASURED).to_json(), "similarity": "cosine"})
    unknown, other = (Identity.from_json({**stored.to_json(), name: value}) for value in (None, "other"))
    assert not served(stored, stored)
    assert not served(stored, unknown) or name == "reading"  # by a similarity something is searched
    assert "other" in served(stored, other)
    assert bool(served(stored, other, candidate=False)) == (name != "candidate_fingerprint")


@pytest.mark.parametrize(
    ("stored", "here", "same"),
    [
        ("minilm@W4", "sentence-transformers/all-MiniLM-L6-v2@W4-g128", True),
        ("minilm@W4", "sentence-transformers/all-MiniLM-L6-v2@W3", False),
        ("minilm vs ./low", "org/minilm  vs ./low", True),
        ("minilm vs ./low", "minilm vs ./other", False),
        ("my own name", "my own name", True),
    ],
)
def test_names_of_one_model_are_one_where_its_weights_are(stored: str, here: str, same: bool) -> None:
    first, other = (Identity.of(spec=spec, model_fingerprint="full") for spec in (stored, here))
    assert (not served(first, other)) == same
    # without the digest of either, a name is all there is
    assert (not served(first, replace(other, model_fingerprint=None))) == (stored == here)


def test_a_stored_candidate_that_moved_is_the_same() -> None:
    first, other = (
        Identity.of(spec=f"minilm vs {place}", model_fingerprint="full", candidate_fingerprint="low")
        for place in ("./low", "/models/low")
    )
    assert not first.differences(other, SERVED)
    for digest in ("odd", None):
        assert "pair: minilm vs ./low" in served(first, replace(other, candidate_fingerprint=digest))


def test_a_signature_names_what_decides_the_figures_and_no_place_of_ones_own() -> None:
    metrics = {"flip@1": {"value": 0.25, "n": 40}}
    assert signature({**MEASURED, "versions": {"quantdrift": "0.1.0"}, "metrics": metrics}) == (
        "quantdrift:0.1.0|minilm@W4-g128-rtn|corpus/de/test#texts|fp32|linear probe|model:full|candidate:low|n:40"
    )
    spec = "/home/ann/models/mine vs openai:https://embed.internal:8443/v1#served"
    assert signature({"spec": spec, "data": {"name": "faq|2\nmore"}}) == "quantdrift:?|mine vs openai:served|faq/2 more"
