"""Every number of the paper's tables, from scores made at random: by the metric that a column of the paper has."""

import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from scipy.stats import spearmanr

from quantdrift.evidence.record import Evidence
from quantdrift.metrics import parse_metric
from quantdrift.spec.grammar import parse_scheme
from quantdrift.study.folder import StudyFolder
from quantdrift.study.plan import Cell
from quantdrift.trust.certify import certify
from quantdrift.trust.sweep import sweep
from quantdrift_paper.contenders import predicted_by_contender_count
from quantdrift_paper.tables import Source
from support.metric_samples import names
from support.routing_samples import classified
from support.small_evidence import evidence_of
from support.study_samples import planned

N, ITEMS, LEVELS = 240, 40, (0.10, 0.05, 0.01)
SEARCHES, PICTURES, LISTS = ("docs", "papers"), ("photos",), ("short", "long")
CLASSES, SELVES = ("intents", "topics"), ("intents-self", "topics-self")
BOTH = (*SEARCHES, *SELVES)
KINDS: dict[str, dict[str, Any]] = {
    **{name: {"kind": "classification", "inputs": "texts"} for name in CLASSES},
    **{name: {"kind": "self-retrieval"} for name in SELVES},
    **{name: {"modalities": "text to image"} for name in PICTURES},
    **{name: {"shortlist": {"depth": ITEMS}} for name in LISTS},
}
BITS, GRIDS, QUANTIZERS = ("W4", "W3"), ("-channel", "", "-g64"), {"": "RTN", "-gptq": "GPTQ"}
PLAIN, ALONE = [f"{bits}{q}" for bits, q in product(BITS, QUANTIZERS)], [f"{bits}+query" for bits in BITS]
SCHEMES = [*PLAIN, *ALONE, *(f"{bits}{grid}" for bits in BITS for grid in ("-channel", "-g64"))]
SCHEMES += [f"W{bits}{q}" for bits, q in product(("4A8", "8", "8A8"), QUANTIZERS)]
LEFT_OUT = {name: {*SCHEMES} - {*PLAIN, *ALONE} for name in PICTURES} | {name: {*SCHEMES} - {*BITS} for name in LISTS}
"""Schemes that no table asks of these data."""
Lines = dict[str, dict[tuple[str, ...], list[Any]]]
"""The values of every row of tables, by its labels."""


def canonical(scheme: str) -> str:
    return str(parse_scheme(scheme))


@cache
def evidence(data: str, scheme: str) -> Evidence:
    """Of 240 inputs with one right class or two relevant items; fewer bits move scores more."""
    rng, wide = np.random.default_rng(crc32(data.encode())), 3.0 if data in CLASSES else 0.4
    before = rng.normal(0, wide, (N, ITEMS))
    right = np.array([rng.choice(ITEMS, 2, replace=False) for _ in range(N)])
    before[np.arange(N)[:, None], right[:, :1] if data in CLASSES else right] += 2 * wide
    noise = np.random.default_rng(crc32(f"{data}{scheme}".encode())).normal(0, 1, (N, ITEMS))
    after = before + noise * (12 if data in CLASSES else 3) * 2.0 ** -parse_scheme(scheme).weight_bits
    if data in CLASSES:
        return classified(before, after, right[:, 0])
    qrels = {f"q{row}": {f"d{item}": 1 for item in items} for row, items in enumerate(right)}
    return evidence_of(before.astype(np.float32), after.astype(np.float32), k=ITEMS, qrels=qrels, item_ids=names(ITEMS))


def over(data: Sequence[str], scheme: str, *metrics: str) -> list[float]:
    """The mean over data of each metric."""
    estimates = [[parse_metric(m)(evidence(d, canonical(scheme))).value for d in data] for m in metrics]
    return [float(np.mean([np.nan if value is None else value for value in values])) for values in estimates]


def flips(data: Sequence[str], scheme: str) -> float:
    return over(data, scheme, "flip@1")[0]


def lines_of(folder: Path, *studies: dict[str, Any]) -> Lines:
    """The values of the tables of studies, joined."""

    def finished(cell: Cell) -> Any:
        data, scheme = cell.data.called, cell.spec.scheme
        if scheme in map(parse_scheme, LEFT_OUT.get(data, ())):
            return None
        about = {"name": data, "fingerprint": data, **KINDS.get(data, {})}
        shared = f"{data}{scheme}".replace("gptq", "rtn")  # all quantizers have the widths of one measurement
        record = {"allocation": chosen(shared)} if scheme.criterion else {}
        settings = {"settings": {"probe": {}}} if data in CLASSES else {}
        more = {"bits_per_weight": {"n_parameters": 22_700_000}, "quantization": record, **settings}
        return evidence(data, str(scheme)), {"data": about, **more}

    folders: list[StudyFolder] = [planned(folder / f"{n}", content, finished) for n, content in enumerate(studies)]
    tables, _ = Source(folders=folders).tables()
    return {name: {line[0]: [*line[1]] for line in table.lines} for name, table in tables.items()}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """The tables of a study of a model that is read in five ways."""
    data: list[Any] = [{"folder": f"/{name}"} for name in (*SEARCHES, *PICTURES, *LISTS, *CLASSES)]
    data += [{"folder": f"/{name}", "neighbours": True} for name in CLASSES]
    study = {"models": ["minilm"], "schemes": SCHEMES, "data": data}
    return lines_of(tmp_path_factory.mktemp("numbers"), study)


def told(value: Any) -> float:
    """A number as a table has it: the first of a text, percent as a share."""
    if not isinstance(value, str):
        return float(value)
    number = float(re.findall(r"[-+]?\d+\.?\d*", value.replace(r"\times", ""))[0])
    return number / 100 if r"\%" in value.partition(" ")[0] else number


def agree(found: dict[tuple[str, ...], list[Any]], wanted: dict[tuple[str, ...], Sequence[float]], off: float) -> None:
    """The same rows, and in each the same numbers, up to so much."""
    assert found.keys() == wanted.keys()
    for labels, values in wanted.items():
        assert [told(value) for value in found[labels]] == pytest.approx([*values], abs=off, rel=off), labels


def test_tables_of_metrics(lines: Lines) -> None:
    ways, pairs = list(product(BITS, QUANTIZERS.items())), list(zip(CLASSES, SELVES, strict=True))
    clip = ("flip@1", "reference.accuracy", "accuracy", "gold_lost@1")
    mechanism = ("flip@1", "separation", "stable", "flip_to_runner_up", "set_kept@5")
    cuts = [f"{metric}@{k}" for metric in ("cut_separation", "set_kept") for k in (1, 2, 3, 5)]
    gold = ("relative.ndcg@10", "gold_lost@1", "gold_lost@5", "gold_lost@10")
    wanted: dict[str, dict[tuple[str, ...], Sequence[float]]] = {
        "gold": {("minilm", b): over(SEARCHES, b, *gold) for b in BITS},
        "clip": {("minilm", b): over(PICTURES, b, *clip) for b in BITS},
        "clip_mechanism": {("minilm", b): over(PICTURES, b, *mechanism) for b in BITS},
        "crossencoder": {(d, b): over((d,), b, "flip@1", "separation") for d, b in product(LISTS, BITS)},
        "topk": {("minilm",): over(CLASSES, "W4", *cuts)},
        "contrast": {
            (pair[0], b): [over((d,), b, m)[0] for m in ("flip@1", "separation") for d in pair]
            for pair, b in product(pairs, BITS)
        },
        "query": {
            ("minilm", d, b): [flips((d,), b), flips((d,), f"{b}+query")]
            for d, b in product((*BOTH, *PICTURES), BITS)
        },
        "regime": {
            (called, b): over(CLASSES, b + q, "separation", "flip@1", "accuracy")
            + over(SELVES, b + q, "separation", "flip@1")
            for b, (q, called) in ways
        },
        "clip_regime": {
            (called, b): over(PICTURES, b + q, "separation", "flip@1", "accuracy") for b, (q, called) in ways
        },
        "granularity": {
            ("RTN",): [float(np.mean([flips(kind, b + g) for b in BITS])) for kind in (CLASSES, BOTH) for g in GRIDS]
        },
    }  # fmt: skip
    for name, rows in wanted.items():
        agree(lines[name], rows, 6e-4)
    for b in BITS:
        assert rf"${100 * over(PICTURES, b, 'relative.accuracy')[0]:+.1f}$\%" in lines["clip"]["minilm", b][2]
    assert lines["arch"]["minilm",][:2] == ["Encoder", "0.023"]
    arch = [value for b in BITS for value in over(SEARCHES, b, "flip@1", "separation")]
    assert lines["arch"]["minilm",][2:] == pytest.approx(arch)
    rates = [flips(data, "W4") for data in (CLASSES, SELVES)]
    shares = [pytest.approx(rate, abs=6e-4) for rate in rates]
    found = [told(value) for value in lines["fragility"]["minilm, one checkpoint",]]
    assert found == [*shares, pytest.approx(rates[1] / rates[0], abs=0.06)]
    agree(lines["quantizers"], {(b, called): [100 * flips(BOTH, b + q)] for b, (q, called) in ways}, 0.05)
    each = [flips((d,), "W3-gptq") for d in BOTH]
    assert rf"$\pm${100 * np.std(each, ddof=1) / 2:.1f}" in lines["quantizers"]["W3", "GPTQ"][0]


def test_eight_bit_activations(lines: Lines) -> None:
    for kind, data in (("Classification", CLASSES), ("Retrieval", BOTH)):
        medians = {s: [over((d,), s, "separation")[0] for d in data] for s in ("W4", "W4A8", "W8A8")}
        rows = {
            (f"{kind} ($n={len(data)}$)", "Top-1 change"): [flips(data, s) for s in medians],
            (f"{kind} ($n={len(data)}$)", "Median separation"): [float(np.median(m)) for m in medians.values()],
            (f"{kind} ($n={len(data)}$)", "Above threshold"): [np.mean(np.array(m) >= 1) for m in medians.values()],
        }
        agree({labels: v for labels, v in lines["activation"].items() if labels in rows}, rows, 6e-3)
    wanted = {}
    for q, called in QUANTIZERS.items():
        values = []
        for bits in ("W4", "W8"):
            rates = [flips(data, bits + a8 + q) for data in (CLASSES, BOTH) for a8 in ("", "A8")]
            points = [over((d,), f"{bits}A8{q}", "separation", "flip@1") for d in (*BOTH, *CLASSES)]
            values += [*rates, rates[3] / rates[1], spearmanr(*zip(*points, strict=True)).statistic]
        wanted[(called,)] = values
    agree(lines["activation_quantizers"], wanted, 0.01)


def test_trust_and_buckets(lines: Lines) -> None:
    kinds = {"Classification": CLASSES, "Text retrieval": SEARCHES, "Retrieval": SELVES, "CLIP": PICTURES}

    def certified(data: Sequence[str], score: Any, what: str) -> list[float]:
        found = [certify(evidence(d, canonical("W4")), LEVELS, [("joint", score)]).certificates for d in data]
        shares = [[getattr(level, what) for level in levels] for levels in found]
        return np.mean([[getattr(share, "value", share) for share in levels] for levels in shares], axis=0).tolist()

    for name, data in kinds.items():
        sides = [certified(data, "S", what) for what in ("coverage", "violation")]
        for alpha, *values in zip(LEVELS, *sides, strict=True):
            found = lines["certificate"][f"{name} (minilm)", f"{alpha:.2f}"]
            assert [told(value) for value in found] == pytest.approx(values, abs=6e-4)
        assert lines["certificate_tau"][f"{name} (minilm)",] == pytest.approx(certified(data, "S", "threshold"))
    scores = {"Our stability check": "S", "Margin, generic calibration": "gap"}
    for called, score in {**scores, "Max-softmax-prob, generic calibration": "msp"}.items():
        sides = [certified(CLASSES, score, what) for what in ("coverage", "violation")]
        cells = [value for pair in zip(*sides, strict=True) for value in pair]
        assert lines["baselines"]["minilm", called] == pytest.approx(cells)
    losing = [d for d in CLASSES if over((d,), "W4-channel", "change.accuracy")[0] <= -0.005]
    points = [point for d in losing for point in sweep(evidence(d, canonical("W4-channel")))]
    for score, called in {"gap": "Gap (ours)", "msp": "MSP", "entropy": "Entropy"}.items():
        at = [[p for p in points if (p.score, p.percentile) == (score, percentile)] for percentile in (10, 25, 50)]
        routed = [np.mean([getattr(p, what).value for p in some]) for some in at for what in ("routed", "accuracy")]
        assert lines["routing_sweep"][f"minilm ({len(losing)})", called] == pytest.approx(routed)
    for place, (low, high) in enumerate(pairwise((0, 0.05, 0.1, 0.2, 0.5))):
        values = []
        for b in BITS:
            of = [evidence(d, canonical(b + q)) for d, q in product(SEARCHES, QUANTIZERS)]
            columns = [[parse_metric(m).per_input(e) for e in of] for m in ("separation", "flip@1", "harm")]
            ratio, flipped, harmed = (np.concatenate(column) for column in columns)
            inside = (ratio >= low) & (ratio < high)
            values += [inside.sum(), flipped[inside].mean(), harmed[inside].mean()]
        assert [*lines["harm"].values()][place] == pytest.approx(values)
    for name, data, ends in (("Classification", CLASSES, [(1, 1), (4, 4)]), ("Text retrieval", SEARCHES, [(1, 50)])):
        group = predicted_by_contender_count([evidence(d, canonical("W4")) for d in data], buckets=ends)
        for bucket, (low, high) in zip(group.buckets, ends, strict=True):
            labels = f"{name}, minilm", f"{group.fit.scale:.2f}", f"{low}" if low == high else f"{low}--{high}"
            assert lines["pflip"][labels] == pytest.approx([bucket.predicted, bucket.measured.value])


# --- allocations ----------------------------------------------------------------------------------

PAPERS, OURS, BASE = "gap_exact+solver=greedy", "gap", "reconstruction"
TITLED = {PAPERS: "Gap sensitivity (paper)", OURS: "Gap, first order (ours)", BASE: "Reconstruction error"}
METRICS, SEEDS = ("flip@1", "accuracy", "gold_lost@1"), ("", "+seed=1")
LAYERS = [f"layer.{number}" for number in range(12)]


def chosen(key: str) -> dict[str, Any]:
    """The record of an allocation, at random."""
    rng = np.random.default_rng(crc32(key.encode()))
    widths, losses = rng.integers(3, 5, len(LAYERS)).tolist(), rng.random(len(LAYERS)).tolist()
    held = {"widths": dict(zip(LAYERS, widths, strict=True)), "losses": dict(zip(LAYERS, losses, strict=True))}
    return {**held, "criterion": key, "data_digest": key}


def part_of(data: str, criterion: str, what: str, *, budget: float = 3.5, draw: str = "") -> list[Any]:
    """The widths or losses of the layers of an allocation."""
    return [*chosen(data + canonical(f"W{budget:g}+{criterion}{draw}"))[what].values()]


def captured(
    data: Sequence[str], part: str, criterion: str, *draws: str, metric: str = METRICS[0], budget: float = 3.5
) -> float:
    """Gains over headrooms, summed over data and draws."""
    sums = np.zeros(2)
    for name, draw in product(data, draws or ("",)):
        always = draw if "gptq" in part else ""  # it calibrates on a draw of documents, also with uniform widths
        plus = f"+{criterion}{always if criterion == BASE else draw}"
        schemes = (f"W3{part}{always}", f"W{budget:g}{part}{plus}", f"W4{part}{always}")
        low, mine, high = (over((name,), scheme, metric)[0] for scheme in schemes)
        sums += [low - mine, low - high]
    return float(sums[0] / sums[1])


def capture_study(model: str, data: Sequence[str], **block: Any) -> dict[str, Any]:
    block = {"criteria": [*TITLED], **block}
    return {"models": [model], "data": [{"folder": f"/{name}"} for name in data], "capture": block}


def test_allocations(tmp_path: Path) -> None:
    block = {"budgets": [3.25, 3.5], "quantizers": ["rtn", "gptq"], "seeds": [0, 1]}
    systems = {"Text": ("m", SEARCHES, ""), "CLIP": ("c", PICTURES, "clip_")}
    lines = lines_of(tmp_path, *(capture_study(model, data, **block) for model, data, _ in systems.values()))
    for system, (model, data, prefix) in systems.items():
        by_criterion = lines["alloc_clip" if prefix else "alloc_nograd"]
        shares = {c: [captured(data, q, c, *SEEDS) for q in QUANTIZERS] for c in TITLED}
        for criterion, called in TITLED.items():
            assert by_criterion[called,] == pytest.approx(shares[criterion])
            for budget in (3.25, 3.5):
                wanted = [captured(data, "", criterion, *SEEDS, metric=m, budget=budget) for m in METRICS]
                assert lines["alloc_budget"][system, f"{budget:g} bits", called][:3] == pytest.approx(wanted)
            draws = SEEDS[:1] if criterion == BASE else SEEDS
            means = np.mean([over(data, f"W3.5+{criterion}{draw}", *METRICS) for draw in draws], axis=0)
            assert lines[f"{prefix}alloc_absolute"][called,] == pytest.approx(means)
        for bits in (3, 4):
            assert lines[f"{prefix}alloc_absolute"][f"All W{bits}",] == pytest.approx(over(data, f"W{bits}", *METRICS))
        for criterion in (PAPERS, OURS):
            leads = [told(value) for value in by_criterion[f"{TITLED[criterion]} less reconstruction",]]
            steps = [100 * (a - b) for a, b in zip(shares[criterion], shares[BASE], strict=True)]
            assert leads == pytest.approx(steps, abs=0.06)
        of_model = lines[f"{prefix}alloc_permodel"][model,]
        assert of_model[:3] == pytest.approx([shares[c][0] for c in (BASE, PAPERS, OURS)])
        losses = [(part_of(d, BASE, "losses"), part_of(d, PAPERS, "losses", draw=s)) for d in data for s in SEEDS]
        rhos = [spearmanr(*pair).statistic for pair in losses]
        assert of_model[3:] == [
            len(LAYERS), pytest.approx(np.mean(rhos)), f"$[{min(rhos):+.2f}, {max(rhos):+.2f}]$"
        ]  # fmt: skip
        agreed = [
            np.mean([
                np.equal(*(part_of(d, criterion, "widths", budget=b, draw=s) for s in SEEDS))
                for d, b in product(data, (3.25, 3.5))
            ])
            for criterion in (PAPERS, OURS)
        ]  # fmt: skip
        assert lines["alloc_seed"][system, model] == [2 * len(data), *(pytest.approx(share) for share in agreed)]
    for (q, called), (criterion, title) in product(QUANTIZERS.items(), TITLED.items()):
        wanted = [captured(PICTURES, q, criterion, *SEEDS, metric=m) for m in METRICS]
        assert lines["clip_alloc_main"][called, title][:3] == pytest.approx(wanted)


def test_allocations_by_size_and_with_activations(tmp_path: Path) -> None:
    sizes = lines_of(tmp_path / "sizes", capture_study("m", SEARCHES, sizes=[32, 128]))["alloc_calib"]
    few, many = sizes["Text", "32"], sizes["Text", "128"]
    assert few[1:] == pytest.approx([captured(SEARCHES, "", c, "+queries=32") for c in TITLED])
    assert many[1:] == pytest.approx([captured(SEARCHES, "", c) for c in TITLED])
    widths = [[part_of(d, PAPERS, "widths", draw=draw) for d in SEARCHES] for draw in ("+queries=32", "")]
    assert few[0] == pytest.approx(np.equal(*widths).mean())
    eight = lines_of(tmp_path / "a8", capture_study("m", SEARCHES, activations=[16, 8]))
    order = [captured(SEARCHES, a8, criterion) for criterion in (PAPERS, OURS, BASE) for a8 in ("", "A8")]
    assert eight["alloc_activation_quantizers"]["RTN",] == pytest.approx(order)
