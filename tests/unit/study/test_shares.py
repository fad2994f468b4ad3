"""Shares of the stages of a deployment."""

from itertools import chain, combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdrift.base.errors import StudyError
from quantdrift.metrics import parse_metric
from quantdrift.spec.grammar import parse_scheme
from quantdrift.study.folder import STUDY, StudyRecord, open_study
from quantdrift.study.shares import combinations_of, in_words, waterfall, waterfalls_of
from support.study_samples import study_of

FLIP = parse_metric("flip@1")


def subsets(order):
    return [frozenset(names) for names in chain.from_iterable(combinations(order, n) for n in range(1, len(order) + 1))]


def test_two_stages_by_hand():
    """Input 0 is changed by either stage, 1 by the weights, 2 by both together only, 3 by none."""
    values = {
        frozenset({"weights"}): np.array([1.0, 1, 0, 0]),
        frozenset({"index"}): np.array([1.0, 0, 0, 0]),
        frozenset({"weights", "index"}): np.array([1.0, 1, 1, 0]),
    }
    result = waterfall(values, ["weights", "index"], FLIP)
    weights, index = result.stages
    assert (weights.alone.value, weights.so_far.value, weights.share.value) == (0.5, 0.5, 0.5)  # 1/2, 1, 1/2, 0
    assert (index.alone.value, index.so_far.value, index.share.value) == (0.25, 0.75, 0.25)
    assert (result.total.value, result.interaction.value, result.n) == (0.75, 0.0, 4)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), st.integers(0, 10**6))
def test_shares_are_the_mean_over_all_orders_and_add_up(size, seed):
    order = ["weights", "activations", "embeddings", "index"][:size]
    rng = np.random.default_rng(seed)
    values = {stages: rng.normal(size=5) for stages in subsets(order)}
    result = waterfall(values, order, parse_metric("change.ndcg@10"))
    by_name = {frozenset(): np.zeros(5), **values}
    for stage in result.stages:
        steps = []
        for other in permutations(order):
            before = frozenset(other[: other.index(stage.name)])
            steps.append(by_name[before | {stage.name}] - by_name[before])
        assert stage.share.value == pytest.approx(np.mean(steps))
    assert sum(stage.share.value for stage in result.stages) == pytest.approx(result.total.value)
    alone = sum(stage.alone.value for stage in result.stages)
    assert result.interaction.value == pytest.approx(result.total.value - alone)


def test_inputs_without_a_value_are_left_out():
    values = {stages: np.array([1.0, np.nan]) for stages in subsets(["weights", "index"])}
    assert waterfall(values, ["weights", "index"], FLIP).n == 1
    nothing = waterfall({stages: np.array([np.nan]) for stages in values}, ["weights", "index"], FLIP)
    assert nothing.total.value is None
    assert "No shares" in in_words([nothing], named="W4")[0]


@pytest.mark.parametrize(("together", "told"), [(0.6, True), (0.4, False)])
def test_in_brief_an_interaction_is_told_where_it_is_shown(together, told):
    """Of 100 inputs each stage changes 20 others; both change all 40, or 20 more."""
    first, second = (np.isin(np.arange(100), np.arange(20) + at).astype(float) for at in (0, 20))
    both = (np.arange(100) < 100 * together).astype(float)
    values = {frozenset({"a"}): first, frozenset({"b"}): second, frozenset({"a", "b"}): both}
    result = [waterfall(values, ["a", "b"], FLIP)]
    assert len(in_words(result, named="W4")) == 2
    assert len(in_words(result, named="W4", brief=True)) == 1 + told


def test_combinations():
    result = list(
        map(str, combinations_of(parse_scheme("W4A8-gptq+emb=int8+rescore=2+index=IVF8,Flat+search=nprobe=2")))
    )
    assert len(result) == len(set(result)) == 15
    assert result[:4] == [
        "W4-g128-gptq",
        "W16A8-g128-rtn",
        "fp+emb=int8+rescore=2",
        "fp+index=IVF8,Flat+rescore=2+search=nprobe=2",
    ]
    assert result[-1] == "W4A8-g128-gptq+emb=int8+index=IVF8,Flat+rescore=2+search=nprobe=2"
    with pytest.raises(StudyError, match="weights alone"):
        combinations_of(parse_scheme("W4"))


SCHEMES = ("W4", "fp+emb=int8", "W4+emb=int8")


def test_a_folder_is_read_only_if_every_combination_is_there(tmp_path):
    for name, schemes, missing, message in (
        ("whole", SCHEMES, (), None),
        ("open", SCHEMES, ("fp+emb=int8",), "is open"),
        ("less", SCHEMES[1:], (), "lacks"),
    ):
        folder = study_of(tmp_path / name, models=("minilm",), schemes=schemes, data=("cranfield",), missing=missing)
        StudyRecord(cells=folder.cells, kind="waterfall").write(tmp_path / name / STUDY)
        if message is None:
            result = waterfalls_of(open_study(tmp_path / name))
            assert str(result[0].metric) == "flip@1"
            flips = [folder.run(cell).evidence() for cell in folder.cells]
            assert result[0].total.value == pytest.approx(FLIP(flips[-1]).value)
            assert result[0].stages[0].alone.value == pytest.approx(FLIP(flips[0]).value)
        else:
            with pytest.raises(StudyError, match=message):
                waterfalls_of(open_study(tmp_path / name))
    plain = study_of(tmp_path / "plain", models=("minilm",), schemes=SCHEMES, data=("cranfield",))
    with pytest.raises(StudyError, match="quantdrift waterfall wrote"):
        waterfalls_of(plain)
