"""What quantization may change in the search of the help pages."""

from quantdrift_pytest import Drifts, assert_drift

SPEC = "minilm@W4-rtn"
FAQ = "data/faq"
NOISE = 0.02


def test_search_is_no_worse_than_it_was() -> None:
    """Query by query, against the committed file."""
    assert_drift(
        SPEC, data=FAQ, baseline="drift-baseline.json", rules=["flip@1 no worse by 0.10", "ndcg@10 no worse by 0.10"]
    )


def test_few_answers_change() -> None:
    """The limits hold, and what changes is not noise."""
    found = assert_drift(SPEC, data=FAQ, flip=0.30, ndcg_at_10=0.60)
    noise = found.value("noise_floor")
    assert noise is not None
    assert noise < NOISE


def test_questions_on_money_keep_their_article(drift: Drifts) -> None:
    """It stays among the first ten for nearly all of them."""
    drift(SPEC, data=FAQ).require(rules=["gold_lost@10 [money] <= 0.20"], slices={"money": ["billing-*", "account-*"]})
