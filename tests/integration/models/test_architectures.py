"""What is kept of tiny models of many architectures holds, and the page says it."""

import json

import architectures
import pytest

from golden import differences

KEPT = json.loads(architectures.FILE.read_text(encoding="utf-8"))["architectures"]
BIDIRECTIONAL = (
    *("bert", "t5", "mpnet", "albert", "electra", "jina", "gte", "fnet", "longformer", "xlnet", "bart"),
    *("embeddinggemma", "is_causal false"),
)
"""Parts of names of architectures whose authors say so."""
OPENED = {name: one for name, one in KEPT.items() if "refused" not in one}


def test_the_page_is_what_was_kept() -> None:
    assert architectures.PAGE.read_text(encoding="utf-8") == architectures.page(), "architectures.py --write"
    assert {*KEPT} == {*architectures.rows()}


@pytest.mark.parametrize("name", OPENED)
def test_what_is_measured_is_the_model_that_was_saved(name: str) -> None:
    one = OPENED[name]
    assert one["is_what_transformers_computes"]
    assert one["changes"] or one["layers"] == sum(one["never_reached"].values())  # which a run refuses
    assert one["is_undone"]
    assert one["counts_what_stays"]
    assert not one["needed_but_not_reached"]
    assert not one["reached_but_not_needed"]
    assert (one["reads"] == "both ways") == any(part in name for part in BIDIRECTIONAL) or not one["reads"]
    said = " ".join(one["notes"])
    assert ("tokenizer.json" in said) == (one["tokens"] != "as saved")
    assert one["is_the_same_in_a_batch"] or "reads padding" in said or name in {"convbert", "fnet"}


@pytest.mark.parametrize("name", ["bert", "qwen3-moe", "qwen2", "vit, classes", "siglip"])
def test_an_architecture_is_surveyed_as_before(name: str) -> None:
    assert not list(differences(KEPT[name], architectures.survey([name])[name]))
