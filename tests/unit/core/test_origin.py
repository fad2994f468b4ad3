"""What a threshold was set on: what is told apart, and what is not compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quantdrift.errors import QuantDriftError
from quantdrift.origin import Origin

SETTINGS: dict[str, Any] = {"dtype": "torch.float32", "device": "cpu"}
RECORD: dict[str, Any] = {
    "spec": "minilm@W4",
    "model": {"fingerprint": "full", "candidate_fingerprint": "low"},
    "data": {"name": "corpus", "fingerprint": "texts", "split": "test", "subset": "de"},
    "settings": {**SETTINGS, "reading": "linear probe", "probe": {"C": 1.0, "digest": "probe"}},
}


def refuse(own: Origin, here: Origin, *, candidate: bool = True) -> str:
    """The message of the refusal; empty if there is none."""
    try:
        own.refuse_other(here, what="it", make="make", error=QuantDriftError, candidate=candidate)
    except QuantDriftError as error:
        return str(error)
    return ""


def test_a_record_is_read() -> None:
    assert Origin.of(RECORD) == Origin(
        spec="minilm@W4-g128-rtn",
        model_fingerprint="full",
        candidate_fingerprint="low",
        reading="linear probe",
        probe="probe",
        data="corpus",
        data_fingerprint="texts",
        split="test",
        subset="de",
        dtype="torch.float32",
        device="cpu",
    )


@pytest.mark.parametrize(
    ("settings", "reading", "similarity"),
    [
        ({"similarity": "cosine"}, "retrieval", "cosine"),  # searches name no reading
        ({"reading": "self-retrieval", "similarity": "cosine"}, "self-retrieval", "cosine"),
        ({"reading": "logits"}, "logits", None),
        ({}, None, None),
        (None, None, None),
    ],
)
def test_what_the_scores_are(settings: Any, reading: str | None, similarity: str | None) -> None:
    found = Origin.of({"spec": "minilm@W4", "settings": settings})
    assert (found.reading, found.similarity, found.probe) == (reading, similarity, None)


def test_a_stored_candidate_has_its_digest_where_two_models_have_it() -> None:
    record = {"spec": "a vs  ./b", "model": {"candidate": {"fingerprint": "low"}}}
    found = Origin.of(record)
    assert (found.spec, found.candidate_fingerprint) == ("a vs ./b", "low")


def test_ids_are_told_apart_whatever_their_order() -> None:
    digests = [Origin.of(input_ids=ids).inputs for ids in (["a", "b"], ["b", "a"], ["ab"], ["a"], ["a", "b", "b"], [])]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 5


@pytest.mark.parametrize("name", ["reading", "similarity", "probe", "candidate_fingerprint"])
def test_only_what_both_know_is_compared(name: str) -> None:
    own = replace(Origin.of(RECORD), similarity="cosine")
    unknown = replace(own, **{name: None})
    other = replace(own, **{name: "other"})
    assert not refuse(own, own)
    assert not refuse(own, unknown)
    assert not refuse(unknown, other)
    assert "other" in refuse(own, other)
    assert bool(refuse(own, other, candidate=False)) == (name != "candidate_fingerprint")


@pytest.mark.parametrize(
    ("own", "here", "same"),
    [
        ("minilm@W4", "sentence-transformers/all-MiniLM-L6-v2@W4-g128", True),
        ("minilm@W4", "sentence-transformers/all-MiniLM-L6-v2@W3", False),
        ("minilm@W4", "minilm vs ./minilm-w4", False),
        ("minilm vs ./low", "org/minilm  vs ./low", True),
        ("minilm vs ./low", "minilm vs ./other", False),
        ("my own name", "my own name", True),
        ("my own name", "minilm@W4", False),
    ],
)
def test_names_of_one_model_are_one_where_its_weights_are(own: str, here: str, same: bool) -> None:
    one, other = (Origin.of(spec=spec, model_fingerprint="full") for spec in (own, here))
    assert (not refuse(one, other)) == same
    # without the digest of either, a name is all there is
    bare = replace(other, model_fingerprint=None)
    assert (not refuse(one, bare)) == (own == here)


def test_a_stored_candidate_that_moved_is_the_same() -> None:
    one, other = (
        Origin.of(spec=f"minilm vs {place}", model_fingerprint="full", candidate_fingerprint="low")
        for place in ("./low", "/models/low")
    )
    assert not refuse(one, other)
    assert "is for minilm vs ./low" in refuse(one, replace(other, candidate_fingerprint="odd"))
    assert "is for minilm vs ./low" in refuse(one, replace(other, candidate_fingerprint=None))


def test_a_pair_that_is_asked_about_has_to_be_known() -> None:
    assert "does not say which pair" in refuse(Origin(), Origin.of(spec="minilm@W4"))
    assert not refuse(Origin(), Origin(candidate_fingerprint="low"))
