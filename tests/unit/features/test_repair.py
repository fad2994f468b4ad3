"""Ways to repair a model, and which deployment is best, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from quantdrift.base.errors import UnsupportedError
from quantdrift.evidence.record import Evidence
from quantdrift.features.repair import choice
from quantdrift.features.repair.choice import Budget, Deployment
from quantdrift.kinds.stage import STAGES
from quantdrift.spec.grammar import parse_scheme
from quantdrift.spec.remedies import check_repairable, remedies_of, repaired_kinds
from support.routing_samples import classified, searched

BITS = {"linear_with_scales": 4.125, "all_parameters": 18.8}
INDEXED = {"bytes_per_document": 384, "index": {"name": "HNSW32", "bytes_per_document": 1808}}

# the first is kept; of the others the reference's first item is 2nd and 3rd; candidate gaps 0.4, 0.25, 0.1
BEFORE = [[0.9, 0.5, 0.4], [0.9, 0.5, 0.4], [0.9, 0.5, 0.4]]
AFTER = [[0.9, 0.5, 0.4], [0.5, 0.75, 0.4], [0.3, 0.5, 0.4]]


def deployment(
    rate: float, *, bits: float = 4.125, size: float = 18.0, stored: float | None = None, time: float | None = None
) -> Deployment:
    return Deployment(
        scheme=parse_scheme("W4"),
        run="run",
        bits=bits,
        all_bits=size,
        stored=stored,
        time=time,
        changed=np.arange(1000) < round(1000 * rate),
    )


@pytest.mark.parametrize(
    ("scheme", "problem"),
    [
        ("fp+dtype=bf16", "it quantizes no weights"),
        ("fp+emb=fp16", "it quantizes no weights"),
        ("W3.5+gap", "its bits are chosen by layer already"),
        ("W4+query", "is one of the configurations"),
        ("W8A8-fp8", "one width"),
    ],
)
def test_a_scheme_with_nothing_to_try_is_refused(scheme: str, problem: str) -> None:
    with pytest.raises(UnsupportedError, match=problem):
        check_repairable(parse_scheme(scheme))


@pytest.mark.parametrize(
    ("schemes", "expected"),
    [
        (choice.uniform_configurations(parse_scheme("W4-g64"), ["hqq", "rtn"]), ["W4-g64-rtn", "W4-g64-hqq"]),
        (  # options of a quantizer stay with it
            choice.uniform_configurations(parse_scheme("W4-g32-gptq+grid=library+seed=1"), ["gptq", "rtn"]),
            ["W4-g32-gptq+grid=library+seed=1", "W4-g32-rtn+seed=1"],
        ),
        (  # what a stage has already is not written twice
            choice.staged_configurations(parse_scheme("W4+tuned=9"), "model", thorough=True),
            [f"W4-g128-rtn+{more}" for more in ("tuned=36", "tuned=240", "table=8+tuned=9")],
        ),
        (choice.staged_configurations(parse_scheme("W4"), "vectors", thorough=False), ["W4-g128-rtn+emb=int8"]),
        (choice.finer_configurations(parse_scheme("W4-g64")), ["W4-g32-rtn"]),
        (choice.finer_configurations(parse_scheme("W4-channel")), ["W4-g64-rtn", "W4-g32-rtn"]),
        (choice.finer_configurations(parse_scheme("W4-g32")), []),
        (  # widths lie around the budget
            [choice.allocated_configuration(parse_scheme("W4-gptq+seed=1"), 4.125)],
            ["W4.125-g128-gptq+gap+seed=1+widths=2,3,4,5,6,8"],
        ),
        ([choice.allocated_configuration(parse_scheme("W4"), bits) for bits in (1.9, 8.0)], ["None"] * 2),
    ],
)
def test_what_is_tried(schemes: list[object], expected: list[str]) -> None:
    assert list(map(str, schemes)) == expected


@pytest.mark.parametrize(
    ("scheme", "offered"),
    [
        ("W4", ""),
        ("W4A8", "W4A8-g128-rtn+act=token"),
        ("fp+emb=binary", "fp+emb=int8 fp+emb=fp16 fp+emb=binary+rescore=4 fp+emb=binary+rescore=16"),
        ("fp+dim=8+emb=fp16", "fp+dim=16+emb=fp16"),
        ("fp+table=4", "fp+table=8"),
        ("W4-nf4+emb=fp16+table=4", "W4-g64-nf4+table=4"),  # the model stays as it is
        ("fp+index=OPQ16,PQ16", "fp+index=OPQ16,SQ8 fp+index=OPQ16,PQ16+rescore=4 fp+index=OPQ16,PQ16+rescore=16"),
        (
            "fp+emb=int8+index=SQ4+rescore=2",
            "fp+emb=fp16+index=SQ4+rescore=2 fp+emb=int8+index=SQ8+rescore=2 fp+index=SQ8+rescore=2 "
            "fp+emb=int8+index=SQ4+rescore=8 fp+emb=int8+index=SQ4+rescore=32 fp+index=SQ4+rescore=2 "
            "fp+emb=int8+rescore=2",
        ),
        (
            "fp+index=HNSW32",
            "fp+index=HNSW32+search=efSearch=64 fp+index=HNSW32+search=efSearch=256 fp+index=HNSW64 "
            "fp+index=HNSW32_SQ8 fp+index=HNSW32+rescore=4 fp+index=HNSW32+rescore=16",
        ),
    ],
)
def test_what_stages_offer(scheme: str, offered: str) -> None:
    parsed = parse_scheme(scheme)
    assert " ".join(map(str, remedies_of(parsed, *repaired_kinds(parsed)))) == offered


def test_every_index_that_is_offered_is_one() -> None:
    names = ("HNSW", "HNSW200", "HNSW32,Flat", "HNSW32_PQ16", "HNSW32_SQ8", "IVF64,PQ16x4fs", "OPQ16,IVF64,PQ16x4")
    names += ("SQ4", "RaBitQ", "IVF64,RQ4x8", "PQ16np", "PQ16,RFlat", "SQ8", "IVF64_HNSW32,PQ16", "Flat", "PCA64,SQ6")
    for other in (other for name in names for other in remedies_of(parse_scheme(f"fp+index={name}"), "vectors")):
        STAGES["index"].refuse(other)


def test_a_deployment_is_what_its_run_says_and_classes_have_no_embeddings() -> None:
    def made(evidence: Evidence, plain: float | None = 1536.0, **record: object) -> Deployment:
        about = {"bits_per_weight": BITS, **record}
        return choice.deployment_of(parse_scheme("W4"), evidence, about, "run", plain=plain)

    searching = made(searched(BEFORE, AFTER))
    assert (searching.rate, searching.bits, searching.stored, searching.time) == (pytest.approx(2 / 3), 4.125, 1536, 1)
    indexed = made(searched(BEFORE, AFTER), deployment=INDEXED, times={"query": {"ratio": 0.2}})
    assert (indexed.stored, indexed.time) == (1808, 0.2)
    unknown = made(searched(BEFORE, AFTER), deployment={"index": {"bytes_per_document": None}})
    assert (unknown.stored, unknown.time) == (None, None)
    reading = made(classified([[2.0, 0.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 0.1]]), plain=None)
    assert (reading.rate, reading.stored, reading.time) == (0.5, None, None)


def test_the_front_keeps_what_nothing_beats() -> None:
    candidates = [deployment(rate, stored=32) for rate in (0.5, 0.4)]
    candidates += [deployment(0.4, size=10.0, stored=32), deployment(0.6, stored=8)]
    assert choice.front(candidates) == [False, False, True, True]


def test_the_best_is_within_bits() -> None:
    plain, finer, wide = deployment(0.5), deployment(0.3, bits=4.25), deployment(0.2, bits=4.5)
    candidates = [plain, finer, wide]
    assert choice.best(candidates, Budget(bits=4.25)) is finer
    assert choice.best(candidates, Budget(bits=4.125)) is plain
    against = choice.against_plain(candidates)
    assert against[0].difference is None
    assert [other.difference and other.difference.value for other in against[1:]] == pytest.approx([-0.2, -0.3])


def test_the_best_takes_no_more_bytes_and_time_than_it_may() -> None:
    plain = deployment(0.5, stored=400, time=0.1)
    large, slow = deployment(0.1, stored=1600, time=0.1), deployment(0.2, stored=400, time=1.0)
    unknown, equal = deployment(0.3, time=0.1), deployment(0.3, stored=300, time=0.2)
    candidates = [plain, large, slow, equal, unknown]
    assert choice.best(candidates, Budget(bits=5)) is large
    assert choice.best(candidates, Budget(bits=5, stored=400)) is slow
    assert choice.best(candidates[:-1], Budget(bits=5, stored=400, time=0.4)) is equal
    assert choice.best([plain, large], Budget(bits=5, stored=400, time=0.4)) is plain


def test_the_rate_of_what_was_chosen_is_of_inputs_that_the_choice_did_not_see() -> None:
    """Seven equal ways at a true 10 %, half of whose changes they share: the least of seven is 2 points too low."""
    rng = np.random.default_rng(0)
    n, rate, chosen, confirmed, covered = 300, 0.1, [], [], []
    for seed in range(400):
        common = rng.random(n) < rate / 2
        ways = [common | (rng.random(n) < (rate / 2) / (1 - rate / 2)) for _ in range(7)]
        candidates = [replace(deployment(0.0), changed=way) for way in ways]
        found = choice.chosen_apart(candidates, Budget(bits=4.125), seed=seed)
        chosen.append(found.chosen.rate)
        confirmed.append(found.confirmed.rate)
        flips = found.confirmed.flips
        covered.append(flips.low <= rate <= flips.high)  # type: ignore[operator]  # of many inputs
    assert np.mean(chosen) < 0.085
    assert np.mean(confirmed) == pytest.approx(rate, abs=0.003)
    assert 0.92 < np.mean(covered) < 0.98
    assert found.plain.flips.n + found.deployments[0].flips.n == n
