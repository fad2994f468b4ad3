"""Every number of the paper's tables, from score matrices made at random: computed again here, by none of our code."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.optimize import brentq
from scipy.stats import spearmanr

from quantdrift.spec.grammar import parse_scheme
from quantdrift.study.folder import StudyFolder
from quantdrift.study.plan import Cell
from quantdrift_paper.tables import Source
from support.metric_samples import names
from support.routing_samples import classified
from support.small_evidence import evidence_of
from support.study_samples import planned

N, ITEMS, SPLITS, LEVELS = 240, 40, 20, (0.10, 0.05, 0.01)
SEARCHES, PICTURES, LISTS = ("docs", "papers"), ("photos",), ("short", "long")
CLASSES, SELVES = ("intents", "topics"), ("intents-self", "topics-self")
BITS, GRIDS, QUANTIZERS = ("W4", "W3"), ("-channel", "", "-g64"), {"": "RTN", "-gptq": "GPTQ"}
PLAIN, ALONE = [f"{bits}{q}" for bits, q in product(BITS, QUANTIZERS)], [f"{bits}+query" for bits in BITS]
SCHEMES = [*PLAIN, *ALONE, *(f"{bits}{grid}" for bits in BITS for grid in ("-channel", "-g64"))]
SCHEMES += [f"W{bits}{q}" for bits, q in product(("4A8", "8", "8A8"), QUANTIZERS)]
LEFT_OUT = {name: {*SCHEMES} - {*PLAIN, *ALONE} for name in PICTURES} | {name: {*SCHEMES} - {*BITS} for name in LISTS}
"""Schemes that no table asks of these data."""
KINDS: dict[str, dict[str, Any]] = {
    **{name: {"kind": "classification", "inputs": "texts"} for name in CLASSES},
    **{name: {"kind": "self-retrieval"} for name in SELVES},
    **{name: {"modalities": "text to image"} for name in PICTURES},
    **{name: {"shortlist": {"depth": ITEMS}} for name in LISTS},
}


class Answers:
    """The answers of one cell, from the scores of both arms, [N, ITEMS], and the relevant items of each query."""

    def __init__(self, data: str, scheme: str) -> None:
        parsed = parse_scheme(scheme)
        rng = np.random.default_rng(crc32(data.encode()))
        wide = 3.0 if data in CLASSES else 0.4
        self.before = rng.normal(0, wide, (N, ITEMS)).astype(np.float32)
        self.right = [set(rng.choice(ITEMS, 1 if data in CLASSES else 2, replace=False).tolist()) for _ in range(N)]
        for row, right in enumerate(self.right):
            self.before[row, [*right]] += 2 * wide
        noise = np.random.default_rng(crc32(f"{data}{parsed}".encode())).normal(0, 1, (N, ITEMS))
        self.after = (self.before + noise * 3 * 2.0**-parsed.weight_bits).astype(np.float32)
        self.delta = self.after.astype(float) - self.before
        self.orders = [np.argsort(-side, axis=1, kind="stable") for side in (self.before, self.after)]
        self.ranked = [-np.sort(-side.astype(float), axis=1) for side in (self.before, self.after)]
        self.flip = self.orders[0][:, 0] != self.orders[1][:, 0]
        self.epsilon = np.abs(self.delta).max(axis=1)
        self.separation = self.cut(1)
        self.lead = self.ranked[1][:, 0] - self.ranked[1][:, 1]
        top = self.orders[1][:, 0]
        self.s = self.delta[np.arange(N), top] - self.delta.min(axis=1)
        self.correct = [np.array([o[0] in r for o, r in zip(order, self.right, strict=True)]) for order in self.orders]

    def cut(self, k: int) -> Any:
        """Separation at a cut."""
        return (self.ranked[0][:, k - 1] - self.ranked[0][:, k]) / (2 * self.epsilon)

    def kept(self, k: int) -> Any:
        """Whether the first k are the same."""
        return np.array([{*a[:k]} == {*b[:k]} for a, b in zip(*self.orders, strict=True)])

    def lost(self, k: int) -> float:
        """The share of queries that lose a relevant document, of those that had one among the first k."""
        pairs = zip(*self.orders, self.right, strict=True)
        held = [({*a[:k].tolist()} & r, {*b[:k].tolist()} & r) for a, b, r in pairs]
        return float(np.mean([bool(one - other) for one, other in held if one]))

    def ndcg(self, arm: int) -> float:
        """Mean nDCG@10."""
        gains = [
            sum(1 / np.log2(place + 2) for place, item in enumerate(order[:10]) if item in right)
            for order, right in zip(self.orders[arm], self.right, strict=True)
        ]
        return float(np.mean(gains) / sum(1 / np.log2(place + 2) for place in range(len(self.right[0]))))

    def probabilities(self) -> Any:
        """Of the candidate's classes."""
        powers = np.exp(self.after.astype(float) - self.after.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def confidence(self, score: str) -> Any:
        """What is routed by."""
        p = self.probabilities()
        return {"gap": self.lead, "msp": p.max(axis=1), "entropy": (p * np.log(p)).sum(axis=1)}[score]

    def certified(self, score: str, alpha: float) -> list[float]:
        """Coverage, its standard deviation, violation and threshold over the splits."""
        rng, found = np.random.default_rng(0), []
        for _ in range(SPLITS):
            order = rng.permutation(N)
            fit, test = order[: N // 2], order[N // 2 :]
            confidence = self.lead if score == "S" else self.confidence(score)
            some = np.sort(self.s[fit] if score == "S" else confidence[fit][self.flip[fit]])
            rank = min(int(np.ceil((len(some) + 1) * (1 - alpha) - 1e-9)), len(some))
            accepted = confidence[test] >= some[rank - 1] if score == "S" else confidence[test] > some[rank - 1]
            wrong = self.flip[test][accepted].mean() if accepted.any() else np.nan
            found.append((accepted.mean(), wrong, some[rank - 1]))
        covered, wrong, least = np.array(found).T
        return [covered.mean(), covered.std(ddof=1), float(np.nanmean(wrong)), float(np.median(least))]

    def routed(self, score: str, percentile: int) -> list[float]:
        """The share that is routed, and of the lost accuracy that comes back."""
        rng, sums = np.random.default_rng(0), np.zeros(4)
        gain = self.correct[0].astype(float) - self.correct[1]
        for _ in range(SPLITS):
            order = rng.permutation(N)
            values = self.confidence(score)
            low = values[order[N // 2 :]] < np.percentile(values[order[: N // 2]], percentile, method="higher")
            sums += [low.sum(), len(low), gain[order[N // 2 :]][low].sum(), gain[order[N // 2 :]].sum()]
        return [sums[0] / sums[1], sums[2] / sums[3]]


@cache
def answers(data: str, scheme: str) -> Answers:
    return Answers(data, scheme)


def over(data: Sequence[str], scheme: str, value: Callable[[Answers], Any]) -> float:
    """The mean over data of the mean over inputs."""
    return float(np.mean([np.mean(value(answers(name, scheme))) for name in data]))


def flips(data: Sequence[str], scheme: str) -> float:
    return over(data, scheme, lambda a: a.flip)


def separation(data: Sequence[str], scheme: str) -> float:
    return over(data, scheme, lambda a: np.median(a.separation))


def accuracy(data: Sequence[str], scheme: str, arm: int = 1) -> float:
    return over(data, scheme, lambda a: a.correct[arm])


Lines = dict[str, dict[tuple[str, ...], list[Any]]]
"""The values of every row of tables, by its labels."""


def run_of(data: str, scheme: str, **record: Any) -> Any:
    """The evidence and the record of a cell."""
    made, about = answers(data, scheme), {"name": data, "fingerprint": data, **KINDS.get(data, {})}
    if data in CLASSES:
        evidence = classified(made.before, made.after, [min(right) for right in made.right])
        return evidence, {"data": about, "settings": {"probe": {}}, **record}
    qrels = {f"q{row}": {f"d{item}": 1 for item in right} for row, right in enumerate(made.right)}
    evidence = evidence_of(made.before, made.after, k=ITEMS, qrels=qrels, item_ids=names(ITEMS))
    return evidence, {"data": about, **record}


def lines_of(studies: Sequence[StudyFolder]) -> Lines:
    """The values of the tables of studies."""
    tables, _ = Source(folders=studies).tables()
    return {name: {line[0]: [*line[1]] for line in table.lines} for name, table in tables.items()}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """The tables of a study of a model that is read in five ways."""

    def finished(cell: Cell) -> Any:
        called, scheme = cell.data.called, cell.spec.scheme
        left_out = scheme in map(parse_scheme, LEFT_OUT.get(called, ()))
        return None if left_out else run_of(called, str(scheme), bits_per_weight={"n_parameters": 22_700_000})

    data: list[Any] = [{"folder": f"/{name}"} for name in (*SEARCHES, *PICTURES, *LISTS, *CLASSES)]
    data += [{"folder": f"/{name}", "neighbours": True} for name in CLASSES]
    folder = tmp_path_factory.mktemp("numbers")
    study = planned(folder, {"models": ["minilm"], "schemes": SCHEMES, "data": data}, finished)
    return lines_of([study])


def told(value: Any) -> float:
    """A number as a table has it: the first of a text, percent as a share."""
    if not isinstance(value, str):
        return float(value)
    number = float(re.findall(r"[-+]?\d+\.?\d*", value.replace(r"\times", ""))[0])
    return number / 100 if r"\%" in value.partition(" ")[0] else number


def agree(found: dict[tuple[str, ...], list[Any]], wanted: dict[tuple[str, ...], list[float]], off: float) -> None:
    """The same rows, and in each the same numbers, up to so much."""
    assert found.keys() == wanted.keys()
    for labels, values in wanted.items():
        got = [told(value) for value in found[labels]]
        assert got == pytest.approx(values, abs=off, rel=off), labels


def test_damage_of_one_checkpoint_and_of_searches(lines: dict[str, Any]) -> None:
    rates = [flips(data, "W4") for data in (CLASSES, SELVES)]
    agree(lines["fragility"], {("minilm, one checkpoint",): [*rates, rates[1] / rates[0]]}, 0.05)
    pairs = list(zip(CLASSES, SELVES, strict=True))
    contrast = {
        (pair[0], bits): [value((name,), bits) for value in (flips, separation) for name in pair]
        for pair, bits in product(pairs, BITS)
    }
    agree(lines["contrast"], contrast, 1e-3)
    fall = {bits: over(SEARCHES, bits, lambda a: a.ndcg(1) / a.ndcg(0) - 1) for bits in BITS}
    lost = {bits: [over(SEARCHES, bits, lambda a, k=k: a.lost(k)) for k in (1, 5, 10)] for bits in BITS}
    agree(lines["gold"], {("minilm", bits): [fall[bits], *lost[bits]] for bits in BITS}, 1e-3)
    arch = [value(SEARCHES, bits) for bits in BITS for value in (flips, separation)]
    assert lines["arch"][("minilm",)][:2] == ["Encoder", "0.023"]
    agree({(): lines["arch"][("minilm",)][2:]}, {(): arch}, 1e-3)
    lists = {(data, bits): [flips((data,), bits), separation((data,), bits)] for data, bits in product(LISTS, BITS)}
    agree(lines["crossencoder"], lists, 1e-3)
    alone = {
        ("minilm", data, bits): [flips((data,), bits), flips((data,), f"{bits}+query")]
        for data, bits in product((*SEARCHES, *SELVES, *PICTURES), BITS)
    }
    agree(lines["query"], alone, 1e-3)


def test_quantizers_and_grids(lines: dict[str, Any]) -> None:
    both, ways = (*SEARCHES, *SELVES), list(product(BITS, QUANTIZERS))
    agree(lines["quantizers"], {(bits, QUANTIZERS[q]): [100 * flips(both, bits + q)] for bits, q in ways}, 0.05)
    regime = {
        (QUANTIZERS[q], bits): [
            *(separation(CLASSES, bits + q), flips(CLASSES, bits + q), accuracy(CLASSES, bits + q)),
            *(separation(SELVES, bits + q), flips(SELVES, bits + q)),
        ]
        for bits, q in ways
    }
    agree(lines["regime"], regime, 1e-3)
    clip = {
        (QUANTIZERS[q], bits): [value(PICTURES, bits + q) for value in (separation, flips, accuracy)]
        for bits, q in ways
    }
    agree(lines["clip_regime"], clip, 1e-3)
    grids = [np.mean([flips(kind, bits + grid) for bits in BITS]) for kind in (CLASSES, both) for grid in GRIDS]
    agree(lines["granularity"], {("RTN",): [float(rate) for rate in grids]}, 1e-3)


def test_pictures_and_ranks(lines: dict[str, Any]) -> None:
    clip = {
        ("minilm", bits): [
            *(flips(PICTURES, bits), accuracy(PICTURES, bits, 0), accuracy(PICTURES, bits)),
            over(PICTURES, bits, lambda a: a.lost(1)),
        ]
        for bits in BITS
    }
    agree(lines["clip"], clip, 1e-3)
    for bits in BITS:
        change = over(PICTURES, bits, lambda a: a.correct[1].mean() / a.correct[0].mean() - 1)
        assert rf"${100 * change:+.1f}$\%" in lines["clip"]["minilm", bits][2]
    mechanism = {
        ("minilm", bits): [
            *(flips(PICTURES, bits), separation(PICTURES, bits), over(PICTURES, bits, lambda a: a.separation >= 1)),
            over(PICTURES, bits, lambda a: (a.orders[1][:, 0] == a.orders[0][:, 1])[a.flip]),
            over(PICTURES, bits, lambda a: a.kept(5)),
        ]
        for bits in BITS
    }
    agree(lines["clip_mechanism"], mechanism, 1e-3)
    cuts = [over(CLASSES, "W4", lambda a, k=k: np.median(a.cut(k))) for k in (1, 2, 3, 5)]
    sets = [over(CLASSES, "W4", lambda a, k=k: a.kept(k)) for k in (1, 2, 3, 5)]
    agree(lines["topk"], {("minilm",): [*cuts, *sets]}, 1e-3)
    edges, found = (0, 0.05, 0.1, 0.2, 0.5, 1, np.inf), [*lines["harm"].values()]
    for bits, (place, (low, high)) in product(BITS, enumerate(pairwise(edges))):
        of = [answers(data, bits + q) for data in SEARCHES for q in QUANTIZERS]
        inside = np.concatenate([(a.separation >= low) & (a.separation < high) for a in of])
        harmed = np.concatenate([a.flip & a.correct[0] & ~a.correct[1] for a in of])[inside]
        changed = np.concatenate([a.flip for a in of])[inside]
        cells = found[place][3 * BITS.index(bits) :][:3] if place < len(found) else [None]
        if len(changed):
            assert cells == [len(changed), pytest.approx(changed.mean()), pytest.approx(harmed.mean())]


def test_eight_bit_activations(lines: dict[str, Any]) -> None:
    both = (*SEARCHES, *SELVES)
    for kind, data in (("Classification", CLASSES), ("Retrieval", both)):
        medians = {s: [np.median(answers(name, s).separation) for name in data] for s in ("W4", "W4A8", "W8A8")}
        rows = {
            "Top-1 change": [flips(data, s) for s in medians],
            "Median separation": [float(np.median(values)) for values in medians.values()],
            "Above threshold": [float(np.mean(np.array(values) >= 1)) for values in medians.values()],
        }
        found = {labels[1]: v for labels, v in lines["activation"].items() if labels[0].startswith(kind)}
        agree({(k,): v for k, v in found.items()}, {(k,): v for k, v in rows.items()}, 6e-3)
    wanted = {}
    for q, called in QUANTIZERS.items():
        values = []
        for bits in ("W4", "W8"):
            rates = [flips(data, bits + a8 + q) for data in (CLASSES, both) for a8 in ("", "A8")]
            points = [[value((d,), f"{bits}A8{q}") for value in (separation, flips)] for d in (*both, *CLASSES)]
            values += [*rates, rates[3] / rates[1], spearmanr(*zip(*points, strict=True)).statistic]
        wanted[(called,)] = values
    agree(lines["activation_quantizers"], wanted, 0.01)


def test_trust(lines: dict[str, Any]) -> None:
    kinds = {"Classification": CLASSES, "Text retrieval": SEARCHES, "Retrieval": SELVES, "CLIP": PICTURES}
    found = {
        (name, score, alpha): np.mean([answers(d, "W4").certified(score, alpha) for d in data], axis=0).tolist()
        for name, data in kinds.items()
        for score in (("S", "gap", "msp") if name == "Classification" else ("S",))
        for alpha in LEVELS
    }
    checked = {(f"{name} (minilm)", f"{alpha:.2f}"): found[name, "S", alpha] for name, alpha in product(kinds, LEVELS)}
    agree(lines["certificate"], {key: [values[0], values[2]] for key, values in checked.items()}, 1e-3)
    for key, values in checked.items():
        assert lines["certificate"][key][0].endswith(rf"$\pm$ {100 * values[1]:.1f}")
    least = {(f"{name} (minilm)",): [found[name, "S", alpha][3] for alpha in LEVELS] for name in kinds}
    agree(lines["certificate_tau"], least, 2e-3)
    scores = {"S": "Our stability check", "gap": "Margin", "msp": "Max-softmax-prob"}
    for labels, values in lines["baselines"].items():
        score = next(key for key, name in scores.items() if labels[1].startswith(name))
        wanted = [found["Classification", score, alpha][place] for alpha in LEVELS for place in (0, 2)]
        assert values == pytest.approx(wanted, abs=1e-3)
    losing = [
        d
        for d in CLASSES
        if answers(d, "W4-channel").correct[0].sum() - answers(d, "W4-channel").correct[1].sum() >= 0.005 * N
    ]
    names_ = {"gap": "Gap (ours)", "msp": "MSP", "entropy": "Entropy"}
    routed = {
        (f"minilm ({len(losing)})", called): [
            float(np.mean([answers(d, "W4-channel").routed(score, at)[place] for d in losing]))
            for at in (10, 25, 50) for place in (0, 1)
        ]
        for score, called in names_.items()
    }  # fmt: skip
    agree(lines["routing_sweep"], routed, 1e-3)


def test_predicted_flips(lines: dict[str, Any]) -> None:
    u = np.linspace(0, 1, 201)
    for kind, data in (("Classification", CLASSES), ("Text retrieval", SEARCHES), ("Retrieval", SELVES)):
        of = [answers(name, "W4") for name in data]
        gaps = np.concatenate([(a.ranked[0][:, :1] - a.ranked[0][:, 1:]) / a.epsilon[:, None] for a in of])
        flipped, counts = np.concatenate([a.flip for a in of]), (gaps < 2).sum(axis=1)

        def chance(s: float, gaps: Any = gaps) -> Any:
            near = np.minimum(u[:, None, None] + gaps[None] / (2 * s), 1)
            return trapezoid(1 - near.prod(axis=2), u, axis=0)

        scale = float(brentq(lambda s: chance(s).mean() - flipped.mean(), 0.05, 5, xtol=1e-3))  # noqa: B023
        rows = {labels: values for labels, values in lines["pflip"].items() if labels[0].startswith(f"{kind},")}
        for labels, values in rows.items():
            assert float(labels[1]) == pytest.approx(scale, abs=0.006)
            low, high = (int(end) for end in (labels[2].split("--") * 2)[:2])
            inside = (counts >= low) & (counts <= high)
            assert values == pytest.approx([chance(scale)[inside].mean(), flipped[inside].mean()], abs=5e-3)
        assert rows


# --- allocations ----------------------------------------------------------------------------------

PAPERS, OURS, BASE = "gap_exact+solver=greedy", "gap", "reconstruction"
TITLED = {PAPERS: "Gap sensitivity (paper)", OURS: "Gap, first order (ours)", BASE: "Reconstruction error"}
LAYERS = [f"layer.{number}" for number in range(12)]


def chosen(scheme: str) -> dict[str, Any]:
    """The record of an allocation, at random."""
    rng = np.random.default_rng(crc32(scheme.encode()))
    widths, losses = rng.integers(3, 5, len(LAYERS)).tolist(), rng.random(len(LAYERS)).tolist()
    held = {"widths": dict(zip(LAYERS, widths, strict=True)), "losses": dict(zip(LAYERS, losses, strict=True))}
    return {**held, "criterion": scheme, "data_digest": scheme}


def allocated(folder: Path, data: dict[str, Sequence[str]], **block: Any) -> Lines:
    """The tables of a capture study for each model, joined, whose schemes make what changes at random."""

    def finished(cell: Cell) -> Any:
        called, scheme = cell.data.called, cell.spec.scheme
        shared = f"{called}{scheme}".replace("gptq", "rtn")  # all quantizers have the widths of one measurement
        record = {"allocation": chosen(shared)} if scheme.criterion else {}
        return run_of(called, str(scheme), quantization=record)

    studies = [
        planned(
            folder / model,
            {"models": [model], "data": [{"folder": f"/{name}"} for name in of], "capture": block},
            finished,
        )
        for model, of in data.items()
    ]
    return lines_of(studies)


METRICS: tuple[Callable[[Answers], Any], ...] = (
    lambda a: a.flip.mean(),
    lambda a: a.correct[1].mean(),
    lambda a: a.lost(1),
)


def captured(data: Sequence[str], part: str, value: Any, criterion: str, *drawn: str, budget: float = 3.5) -> float:
    """Gains over headrooms, summed over data and draws."""
    sums = np.zeros(2)
    for name, draw in product(data, drawn or ("",)):
        always = draw if "gptq" in part else ""  # calibrates on a draw of documents, also with uniform widths
        ends = [value(answers(name, parse(f"W{bits}{part}{always}"))) for bits in (3, 4)]
        plus = always if criterion == BASE else draw
        sums += [ends[0] - value(answers(name, parse(f"W{budget:g}{part}+{criterion}{plus}"))), ends[0] - ends[1]]
    return float(sums[0] / sums[1])


def parse(scheme: str) -> str:
    return str(parse_scheme(scheme))


def test_allocations(tmp_path: Path) -> None:
    block = {"criteria": [*TITLED], "budgets": [3.25, 3.5], "quantizers": ["rtn", "gptq"], "seeds": [0, 1]}
    lines, seeds = allocated(tmp_path, {"m": SEARCHES, "c": PICTURES}, **block), ("", "+seed=1")
    for name, data in (("alloc_nograd", SEARCHES), ("alloc_clip", PICTURES)):
        found = lines[name]
        flips_ = {c: [captured(data, q, METRICS[0], c, *seeds) for q in QUANTIZERS] for c in TITLED}
        for criterion, called in TITLED.items():
            assert found[called,] == pytest.approx(flips_[criterion]), (name, criterion)
        for criterion in (PAPERS, OURS):
            steps = [100 * (a - b) for a, b in zip(flips_[criterion], flips_[BASE], strict=True)]
            assert [told(v) for v in found[f"{TITLED[criterion]} less reconstruction",]] == pytest.approx(
                steps, abs=0.06
            )
    for system, called_, data in (("Text", "m", SEARCHES), ("CLIP", "c", PICTURES)):
        for budget, (criterion, called) in product((3.25, 3.5), TITLED.items()):
            wanted = [captured(data, "", value, criterion, *seeds, budget=budget) for value in METRICS]
            assert lines["alloc_budget"][system, f"{budget:g} bits", called][:3] == pytest.approx(wanted)
        absolute = lines["alloc_absolute" if system == "Text" else "clip_alloc_absolute"]
        rows = {"All W3": ["W3"], "All W4": ["W4"]}
        rows |= {called: [f"W3.5+{c}{s}" for s in (seeds if c != BASE else seeds[:1])] for c, called in TITLED.items()}
        for called, schemes in rows.items():
            wanted = [np.mean([over(data, parse(scheme), value) for scheme in schemes]) for value in METRICS]
            assert absolute[called,] == pytest.approx(wanted)
        model = lines["alloc_permodel" if system == "Text" else "clip_alloc_permodel"][called_,]
        assert model[:3] == pytest.approx([captured(data, "", METRICS[0], c, *seeds) for c in (BASE, PAPERS, OURS)])
        pairs = [(f"{d}{parse(f'W3.5+{BASE}')}", f"{d}{parse(f'W3.5+{PAPERS}{seed}')}") for d in data for seed in seeds]
        rhos = [spearmanr(*([*chosen(side)["losses"].values()] for side in pair)).statistic for pair in pairs]
        assert model[3:5] == [len(LAYERS), pytest.approx(np.mean(rhos))]
        assert model[5] == f"$[{min(rhos):+.2f}, {max(rhos):+.2f}]$"
        shares = []
        for criterion in (PAPERS, OURS):
            widths = {
                (d, b, s): [*chosen(f"{d}{parse(f'W{b:g}+{criterion}{s}')}")["widths"].values()]
                for d, b, s in product(data, (3.25, 3.5), seeds)
            }
            same = [np.equal(widths[d, b, ""], widths[d, b, seeds[1]]).mean() for d, b in product(data, (3.25, 3.5))]
            shares.append(np.mean(same))
        assert lines["alloc_seed"][system, called_] == [2 * len(data), *(pytest.approx(share) for share in shares)]
    for (q, called), (criterion, title) in product(QUANTIZERS.items(), TITLED.items()):
        wanted = [captured(PICTURES, q, value, criterion, *seeds) for value in METRICS]
        assert lines["clip_alloc_main"][called, title][:3] == pytest.approx(wanted)


def test_allocations_by_size_and_with_activations(tmp_path: Path) -> None:
    sizes = allocated(tmp_path / "sizes", {"m": SEARCHES}, criteria=[*TITLED], sizes=[32, 128])["alloc_calib"]
    for size, part in ((32, "+queries=32"), (128, "")):
        agreement, *shares = sizes["Text", f"{size}"]
        assert shares == pytest.approx([captured(SEARCHES, "", METRICS[0], c, part) for c in TITLED])
        if size < 128:
            few, many = (
                [[*chosen(f"{d}{parse(f'W3.5+{PAPERS}{end}')}")["widths"].values()] for d in SEARCHES]
                for end in (part, "")
            )
            assert agreement == pytest.approx(np.equal(few, many).mean())
    eight = allocated(tmp_path / "a8", {"m": SEARCHES}, criteria=[*TITLED], activations=[16, 8])
    order = [captured(SEARCHES, a8, METRICS[0], criterion) for criterion in (PAPERS, OURS, BASE) for a8 in ("", "A8")]
    assert eight["alloc_activation_quantizers"]["RTN",] == pytest.approx(order)
