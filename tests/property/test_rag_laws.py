"""Laws of answers behind a search, and SQuAD's scores as another implementation has them."""

from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantdrift.base.progress import Silent
from quantdrift.features.rag.answers import Condition, Rag, exact_match, normalized, token_f1
from quantdrift.features.rag.questions import REFERENCE, Questions
from support.rag_samples import PASSAGES, Echo

TEXTS = st.text(alphabet="aAbt he\u2013.,'-\u00e9\u00df\n1", max_size=14) | st.text(max_size=8)


@pytest.fixture(scope="module")
def squad() -> Any:
    """The official script of SQuAD 1.1, as lm-eval ships it with a task; the file needs nothing else."""
    found = find_spec("lm_eval")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the extra 'lm-eval' is not installed")
    place = Path(found.submodule_search_locations[0]) / "tasks/afrobench/afriqa/prompt_1/utils.py"
    spec = spec_from_file_location("squad_of_lm_eval", place)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@given(said=TEXTS, golds=st.lists(TEXTS, min_size=1, max_size=3))
def test_scores_are_those_of_squad(squad: Any, said: str, golds: list[str]) -> None:
    assert normalized(said) == squad.normalize_answer(said)
    assert exact_match(said, golds) == any(squad.normalize_answer(said) == squad.normalize_answer(g) for g in golds)
    if normalized(said):  # of two empty texts SQuAD 1.1 says 0, and 2.0 says 1
        assert token_f1(said, golds) == pytest.approx(max(squad.f1([(gold, said)]) for gold in golds))


@given(said=TEXTS, gold=TEXTS)
def test_f1_is_a_symmetric_share_that_an_exact_match_makes_whole(said: str, gold: str) -> None:
    value = token_f1(said, [gold])
    assert 0 <= value <= 1
    assert value == token_f1(gold, [said])
    assert not exact_match(said, [gold]) or value == 1
    assert normalized(normalized(said)) == normalized(said)


FOUND = st.lists(st.permutations(sorted(PASSAGES)).map(lambda names: names[:2]), min_size=3, max_size=3)


@given(reference=FOUND, candidate=FOUND)
def test_answers_change_at_most_where_passages_do(reference: list[list[str]], candidate: list[list[str]]) -> None:
    ids = ["a", "b", "c"]
    golds = [["ann"]] * 3
    arms = {REFERENCE: reference, "W4": candidate, "copy": reference}
    questions = Questions(
        about={
            **{"data": "d", "n_passages": 2, "gold_by": "labels", "notes": []},
            **{"ids": ids, "questions": ids, "golds": golds},
        },
        texts=PASSAGES,
        conditions=[Condition(name=name, passages=found) for name, found in arms.items()],
    )
    generator = Echo()
    rag = Rag(record=questions.answered_by(generator, None, Silent()))
    assert rag.effects["copy"].n_changed == rag.effects["copy"].other_passages == 0
    effect = rag.effects["W4"]
    assert effect.other_passages is not None
    assert effect.n_changed <= effect.other_passages
    assert effect.right_to_wrong + effect.wrong_to_right <= effect.n_changed
    assert len(generator.asked) == len(set(generator.asked)) == 6 + effect.other_passages
