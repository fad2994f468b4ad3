"""Laws of answers behind a search, and SQuAD's scores as another implementation has them."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantdrift_rag.answers import exact_match, normalized, token_f1
from support.places import module_at

TEXTS = st.text(alphabet="aAbt he\u2013.,'-\u00e9\u00df\n1", max_size=14) | st.text(max_size=8)


@pytest.fixture(scope="module")
def squad() -> Any:
    """The official script of SQuAD 1.1, as lm-eval ships it with a task; the file needs nothing else."""
    package = find_spec("lm_eval")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the extra 'lm-eval' is not installed")
    place = Path(package.submodule_search_locations[0]) / "tasks/afrobench/afriqa/prompt_1/utils.py"
    return module_at(place)


@given(said=TEXTS, golds=st.lists(TEXTS, min_size=1, max_size=3))
def test_scores_are_those_of_squad(squad: Any, said: str, golds: list[str]) -> None:
    assert normalized(said) == squad.normalize_answer(said)
    assert exact_match(said, golds) == any(squad.normalize_answer(said) == squad.normalize_answer(g) for g in golds)
    if normalized(said):  # of two empty texts SQuAD 1.1 says 0, and 2.0 says 1
        assert token_f1(said, golds) == pytest.approx(max(squad.f1([(gold, said)]) for gold in golds))
