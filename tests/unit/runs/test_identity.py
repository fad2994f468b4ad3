"""Who was measured, on what, how: what is told apart, and what is not compared."""

from dataclasses import replace
from typing import Any

import pytest

from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.runs.identity import SERVED, Identity, signature

RECORD: dict[str, Any] = {
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
    identity = Identity.of(RECORD)
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
        Identity.of(RECORD, spec="minilm@W3")


def test_ids_are_told_apart_whatever_their_order() -> None:
    asked = (["a", "b"], ["b", "a"], ["ab"], ["a"], ["a", "b", "b"], [])
    digests = [Identity.of(input_ids=ids).inputs for ids in asked]
    assert (digests[0], len(set(digests))) == (digests[1], 5)


def test_what_two_runs_have_to_share() -> None:
    first = Identity.of(RECORD)
    settings = {**RECORD["settings"], "k": 5, "device": "cuda", "prompt": "query: "}
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
    stored = Identity.from_json({**Identity.of(RECORD).to_json(), "similarity": "cosine"})
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
    assert signature({**RECORD, "versions": {"quantdrift": "0.1.0"}, "metrics": metrics}) == (
        "quantdrift:0.1.0|minilm@W4-g128-rtn|corpus/de/test#texts|fp32|linear probe|model:full|candidate:low|n:40"
    )
    spec = "/home/ann/models/mine vs openai:https://embed.internal:8443/v1#served"
    assert signature({"spec": spec, "data": {"name": "faq|2\nmore"}}) == "quantdrift:?|mine vs openai:served|faq/2 more"
