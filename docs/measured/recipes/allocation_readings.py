"""Which layers should keep a fourth bit? Readings of how much a layer matters, measured with plain code.

    python allocation_readings.py measure MODEL OUT DATA... [--draws N] [--budgets B,B] [--gptq]  # goes on where it was
    python allocation_readings.py tables OUT CAPTURE.csv TESTS.csv                # capture, and pooled paired tests
    python allocation_readings.py figure CAPTURE.csv FILE.svg                     # capture against budget (matplotlib)

DATA is a folder in BEIR's layout, whose queries search its documents, or a file of {"text": ...} lines, which search
each other. Of its inputs at most 384 may calibrate, of which each draw takes 128, and 900 others are counted. Weights
of all linear layers but an unused pooler are rounded to nearest in groups of 128, to 3 or 4 bits. Some readings choose
from 2 to 6 bits, or for each eighth of a layer's rows; these are measured once, at 3.5 bits. --gptq rounds by GPTQ in
place of to nearest, after the same choice, with the draw's queries and the documents for calibration.
"""

import csv
import hashlib
import json
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from quantdrift.allocation.solver import solve
from quantdrift.builtin.gptq.work import Gptq
from quantdrift.builtin.rtn.work import quantize_rtn
from quantdrift.candidate.quantized import Moments
from quantdrift.models.files.packaged import PACKAGED
from quantdrift.statistics.paired import randomization_test
from quantdrift.statistics.verdicts import holm

BUDGETS, WIDTHS, BLOCKS = (3.5, 3.25, 3.75), (2, 3, 4, 5, 6), 8
TWO = slice(1, 3)
"""Of WIDTHS, 3 and 4: those that all but two readings choose from."""
POOL, CALIBRATION, COUNTED, DOCUMENTS = 384, 128, 900, 300
LONG = 60
"""Documents that are searched where a document has over 300 characters on average."""
PAPER, BASE, OURS = "paper: query side, median, by size", "reconstruction, by size twice", "gap: squares, by size"
FREER = (
    "gap, 2 to 6 bits",
    "reconstruction by size once, 2 to 6 bits",
    "gap, eighths of rows",
    "gap, eighths of rows, 2 to 6 bits",
)
"""Readings that choose from more, measured in the first draw at the first budget alone."""
Floats = np.ndarray[Any, Any]


class Encoder:
    """An encoder, its linear layers, and their weights in full and rounded."""

    def __init__(self, name: str) -> None:
        folder = PACKAGED[name].unpacked() if name in PACKAGED else name
        self.model = SentenceTransformer(str(folder), device="cpu").eval()
        linear = [(n, m) for n, m in self.model.named_modules() if isinstance(m, torch.nn.Linear) and "pooler" not in n]
        self.names, self.layers = zip(*linear, strict=True)
        self.full = [layer.weight.data.clone() for layer in self.layers]
        self.at = {
            bits: [quantize_rtn(w, bits=bits, group_size=128).dequantize(torch.float32) for w in self.full]
            for bits in WIDTHS
        }
        self.nearest = self.at
        self.sizes = np.array([weight.numel() for weight in self.full])

    def put(self, widths: Any) -> None:
        """Round every layer, or every block of its rows, to its width; 16 leaves it alone."""
        for number, (layer, bits) in enumerate(zip(self.layers, np.asarray(widths).tolist(), strict=True)):
            layer.weight.data = self.full[number] if bits == 16 else self.rounded(number, bits)

    def rounded(self, number: int, bits: Any) -> torch.Tensor:
        """A layer's weight at one width, or at one for each block of its rows."""
        if isinstance(bits, int):
            return self.at[bits][number]
        parts = [self.at[wide][number].chunk(BLOCKS)[block] for block, wide in enumerate(bits)]
        return torch.cat(parts)

    def round_by_gptq(self, texts: list[str]) -> None:
        """Round by GPTQ from here on, with the inputs that each layer has in full precision."""
        self.put([16] * len(self.layers))
        moments = [torch.zeros(layer.in_features, layer.in_features) for layer in self.layers]
        tokens = [0] * len(self.layers)

        def watch(number: int) -> Any:
            def hook(_: Any, inputs: Any) -> None:
                flat = inputs[0].detach().flatten(0, -2)
                moments[number] += flat.T @ flat
                tokens[number] += len(flat)

            return hook

        hooks = [layer.register_forward_pre_hook(watch(number)) for number, layer in enumerate(self.layers)]
        for text in texts:  # one at a time: padding would count
            self.encode([text])
        for hook in hooks:
            hook.remove()
        self.at = {
            bits: [
                Gptq(bits=bits, group_size=128)
                .quantize(weight, Moments(second=second / n, mean_abs=second[0], absmax=0.0, n_tokens=n))
                .dequantize(torch.float32)
                for weight, second, n in zip(self.full, moments, tokens, strict=True)
            ]
            for bits in WIDTHS[TWO]
        }

    def encode(self, texts: list[str]) -> Floats:
        """Encode texts to unit length, float32 [n, dim]."""
        found = self.model.encode(texts, batch_size=64, show_progress_bar=False, normalize_embeddings=True)
        return np.asarray(found, np.float32)


class Corpus:
    """Documents, inputs that may calibrate, and inputs that are counted."""

    def __init__(self, place: Path) -> None:
        rng = np.random.default_rng(0)
        if place.is_dir():
            queries = [row["text"] for row in rows(place / "queries.jsonl")]
            texts = [f"{row.get('title', '')} {row['text']}".strip() for row in rows(place / "corpus.jsonl")]
            long = np.mean([len(text) for text in texts]) > 300
            kept = rng.permutation(len(texts))[: LONG if long else DOCUMENTS]
            self.documents, self.own = [texts[at] for at in np.sort(kept)], False
        else:
            queries, self.own = [row["text"] for row in rows(place)], True
        order = rng.permutation(len(queries))
        n_pool = min(POOL, len(order) // 4)
        self.pool = [queries[at] for at in order[:n_pool]]
        self.counted = [queries[at] for at in order[n_pool : n_pool + COUNTED]]
        if self.own:
            self.documents = self.counted

    def first(self, encoder: Encoder) -> Floats:
        """The first document of every counted input, by the model as it is."""
        documents = encoder.encode(self.documents)
        scores = (documents if self.own else encoder.encode(self.counted)) @ documents.T
        if self.own:
            np.fill_diagonal(scores, -np.inf)
        return scores.argmax(axis=1)


def rows(path: Path) -> list[dict[str, str]]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def shifts_of_queries(encoder: Encoder, queries: list[str], leads: Floats) -> Floats:
    """How far each gap moves when one layer is at 3 bits and queries alone are encoded again, [n_layers, n]."""
    found = []
    encoder.put([16] * len(encoder.layers))
    before = (encoder.encode(queries) * leads).sum(axis=1)
    for number in range(len(encoder.layers)):
        encoder.put([3 if number == at else 16 for at in range(len(encoder.layers))])
        found.append((encoder.encode(queries) * leads).sum(axis=1) - before)
    encoder.put([16] * len(encoder.layers))
    return np.array(found)


def first_order(encoder: Encoder, triples: list[tuple[str, str, str]]) -> tuple[Floats, list[Floats]]:
    """The first-order shift of each gap by each block of rows at every width, and inputs' mean squares by layer.

    float64 [n, n_layers, BLOCKS, n_widths], and a list of [in_features].
    """
    encoder.put([16] * len(encoder.layers))
    squares, tokens = defaultdict[int, Any](float), defaultdict[int, int](int)

    def watch(number: int) -> Any:
        def hook(_: Any, inputs: Any) -> None:
            flat = inputs[0].detach().flatten(0, -2)
            squares[number] = squares[number] + flat.square().sum(dim=0)
            tokens[number] += len(flat)

        return hook

    hooks = [layer.register_forward_pre_hook(watch(number)) for number, layer in enumerate(encoder.layers)]
    found = np.zeros((len(triples), len(encoder.layers), BLOCKS, len(WIDTHS)))
    changes = [torch.stack([encoder.at[bits][n] - full for bits in WIDTHS]) for n, full in enumerate(encoder.full)]
    for row, texts in enumerate(triples):
        features = encoder.model.tokenize(list(texts))
        vectors = torch.nn.functional.normalize(encoder.model(features)["sentence_embedding"], dim=1)
        gap = vectors[0] @ (vectors[1] - vectors[2])
        gradients = torch.autograd.grad(gap, [layer.weight for layer in encoder.layers])
        for number, gradient in enumerate(gradients):
            for block, (part, rows) in enumerate(
                zip(gradient.chunk(BLOCKS), changes[number].chunk(BLOCKS, dim=1), strict=True)
            ):
                found[row, number, block] = rows.flatten(1) @ part.flatten()
    for hook in hooks:
        hook.remove()
    return found, [(squares[number] / tokens[number]).numpy() for number in range(len(encoder.layers))]


def queries_of(corpus: Corpus, draw: int) -> list[str]:
    """The calibration queries of a draw."""
    return [corpus.pool[at] for at in np.random.default_rng(100 + draw).permutation(len(corpus.pool))[:CALIBRATION]]


Reading = tuple[Floats, str, bool]
"""Losses [n_units, n_widths]; the rule, "greedy" or "knapsack"; and whether the rule divides them by size."""


def readings(encoder: Encoder, corpus: Corpus, draw: int, folder: Path) -> dict[str, Reading]:
    """Name to the reading; what takes minutes is kept in two files."""
    exact_file, first_file = folder / f"exact-{draw}.npy", folder / f"first-{draw}.npz"
    queries = queries_of(corpus, draw)
    if not (exact_file.exists() and first_file.exists()):
        encoder.put([16] * len(encoder.layers))
        documents, vectors = encoder.encode(corpus.documents), encoder.encode(queries)
        best = np.argsort(-(vectors @ documents.T), axis=1, kind="stable")[:, :2]
        if not first_file.exists():
            texts = corpus.documents
            triples = [
                (query, texts[first], texts[second]) for query, (first, second) in zip(queries, best, strict=True)
            ]
            shifts, squares = first_order(encoder, triples)
            changed = [(a - b).square().sum(dim=0).numpy() for a, b in zip(encoder.at[3], encoder.full, strict=True)]
            activation = np.array([float((s * c).sum()) for s, c in zip(squares, changed, strict=True)])
            np.savez(first_file, shifts=shifts, activation=activation)
        if not exact_file.exists():
            leads = documents[best[:, 0]] - documents[best[:, 1]]
            np.save(exact_file, shifts_of_queries(encoder, queries, leads))
    with np.load(first_file) as stored:
        blocks, activation = stored["shifts"], stored["activation"]
    shifts = blocks.sum(axis=2)
    power = np.stack(
        [
            [float((a - b).square().sum()) for a, b in zip(encoder.at[bits], encoder.full, strict=True)]
            for bits in WIDTHS
        ],
        axis=1,
    )
    query, both = np.median(np.abs(np.load(exact_file)), axis=1), np.median(np.abs(shifts[:, :, 1]), axis=0)
    squares, of_blocks = (shifts**2).mean(axis=0), (blocks**2).mean(axis=0).reshape(-1, len(WIDTHS))
    three = power[:, 1]
    shuffled = np.random.default_rng(draw).permutation(len(three)) * encoder.sizes.astype(float)

    def ranked(loss: Floats, by_size: bool = True) -> Reading:
        return np.stack([loss, 0 * loss], axis=1), "greedy", by_size

    return {
        PAPER: ranked(query),
        "both sides, median, by size": ranked(both),
        "query side, median, not by size": ranked(query, by_size=False),
        "both sides, median, not by size": ranked(both, by_size=False),
        OURS: (squares[:, TWO], "knapsack", True),
        BASE: ranked(three / encoder.sizes),
        "reconstruction, by size once": ranked(three),
        "activation error, by size": ranked(activation),
        "random": ranked(shuffled),
        "gap, 2 to 6 bits": (squares, "knapsack", True),
        "reconstruction by size once, 2 to 6 bits": (power, "knapsack", True),
        "gap, eighths of rows": (of_blocks[:, TWO], "knapsack", True),
        "gap, eighths of rows, 2 to 6 bits": (of_blocks, "knapsack", True),
    }


def widths_of(encoder: Encoder, reading: Reading, budget: float) -> Floats:
    """The width of every layer, or of every block of its rows, within the budget."""
    loss, rule, by_size = reading
    blocks = len(loss) // len(encoder.sizes)
    sizes = np.repeat(encoder.sizes // blocks, blocks)
    if not by_size:
        loss = loss * sizes[:, None]  # the greedy rule divides by size
    loss = np.minimum.accumulate(loss, axis=1)
    offered = WIDTHS if loss.shape[1] == len(WIDTHS) else WIDTHS[TWO]
    found = solve(loss - loss[:, -1:], sizes, widths=offered, budget=budget, method=rule).widths
    return found if blocks == 1 else found.reshape(-1, blocks)


def measure(name: str, out: Path, data: list[Path], points: list[tuple[int, float]], gptq: bool) -> None:
    """Measure what is not there yet at each draw and budget; MODEL is a short name or a folder."""
    encoder = Encoder(name)
    everywhere = [16] * len(encoder.layers)
    called = Path(name).name
    for draw, budget in points:
        for place in data:
            corpus, kept_in = Corpus(place), place.stem if place.is_dir() else place.parent.name
            choices, folder = out / called / kept_in, out / (f"{called}+gptq" if gptq else called) / kept_in
            choices.mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            encoder.at = encoder.nearest
            if (folder / f"draw-{draw}-{budget}.json").exists():
                continue
            chosen = readings(encoder, corpus, draw, choices)
            if (draw, budget) != (0, BUDGETS[0]) or gptq:
                chosen = {reading: chosen[reading] for reading in chosen if reading not in FREER}
            planned = {reading: widths_of(encoder, losses, budget) for reading, losses in chosen.items()}
            if gptq:
                encoder.round_by_gptq(queries_of(corpus, draw) + corpus.documents[:LONG])

            def flips(widths: Any, corpus: Corpus = corpus, folder: Path = folder, draw: int = draw) -> str:
                of_draw = f"{draw}-" if gptq and 16 not in np.ravel(widths) else ""  # calibration differs by draw
                key = of_draw + hashlib.sha256(np.asarray(widths, np.uint8).tobytes()).hexdigest()[:16]
                kept = folder / f"{key}.npy"
                if not kept.exists():
                    encoder.put(widths)
                    np.save(folder / "partial.npy", corpus.first(encoder))
                    (folder / "partial.npy").replace(kept)
                return key

            record = {
                "reference": flips(everywhere),
                "low": flips([3] * len(everywhere)),
                "high": flips([4] * len(everywhere)),
            }
            record |= {f"{budget}|{reading}": flips(widths) for reading, widths in planned.items()}
            (folder / f"draw-{draw}-{budget}.json").write_text(json.dumps(record))
            print(f"{called} on {folder.name}, draw {draw}, {budget} bits: done", flush=True)


def flips_in(folder: Path) -> dict[tuple[float, str], Floats]:
    """Budget and reading to the changes of every counted input, a mean over draws; and those at 3 and 4 bits."""
    first = {path.stem: np.load(path) for path in folder.glob("*.npy") if path.stem != "partial"}
    every = defaultdict(list)
    for path in sorted(folder.glob("draw-*.json")):
        record, budget = json.loads(path.read_text()), float(path.stem.rpartition("-")[2])
        for what, key in record.items():
            changed = first[key] != first[record["reference"]]
            if what in {"low", "high"} or what.startswith(f"{budget}|"):
                every[budget, what.partition("|")[2] or what].append(changed)
    return {key: np.mean(values, axis=0) for key, values in every.items()}


def tables(out: Path, capture: Path, tests: Path) -> None:
    """Write capture by model, budget and reading, with intervals, and pooled paired tests, adjusted over the table.

    Rows of models and budgets that are not in OUT stay as they were.
    """
    measured = sorted(path for path in out.iterdir() if path.is_dir())
    known = {(path.parts[-3], path.stem.rpartition("-")[2]) for path in out.glob("*/*/draw-*.json")}
    lines = [
        line for line in capture.read_text(encoding="utf-8").splitlines() if tuple(line.split(",")[:2]) not in known
    ]
    with tests.open(encoding="utf-8", newline="") as file:
        compared = [
            (row["model"], float(row["budget"]), row["ahead"], row["of"], float(row["points"]) / 100, float(row["p"]))
            for row in csv.DictReader(file)
            if (row["model"], row["budget"]) not in known
        ]
    for model in measured:
        found = {folder.name: flips_in(folder) for folder in sorted(model.iterdir())}
        for budget in sorted(BUDGETS):
            there = {name: flips for name, flips in found.items() if (budget, PAPER) in flips}
            readings = [reading for at, reading in next(iter(there.values()), {}) if at == budget]
            for reading in (reading for reading in readings if reading not in {"low", "high"}):
                lines.append(row_of(model.name, budget, reading, there))
            for one, other in (
                (PAPER, BASE),
                (OURS, BASE),
                (OURS, PAPER),
                (OURS, "both sides, median, by size"),
                (OURS, "both sides, median, not by size"),
                (OURS, "reconstruction, by size once"),
                (OURS, "activation error, by size"),
                (PAPER, "random"),
                ("gap, 2 to 6 bits", OURS),
                ("gap, eighths of rows", OURS),
                ("gap, eighths of rows, 2 to 6 bits", OURS),
            ):
                if there and all((budget, reading) in flips for flips in there.values() for reading in (one, other)):
                    apart = np.concatenate([flips[budget, other] - flips[budget, one] for flips in there.values()])
                    compared.append(
                        (model.name, budget, one, other, apart.mean(), randomization_test(apart, 0 * apart))
                    )
    capture.write_text("\n".join(lines) + "\n", encoding="utf-8")
    adjusted = holm([p for *_, p in compared])
    with tests.open("w", encoding="utf-8") as file:
        file.write("model,budget,ahead,of,points,p,p_holm\n")
        for (model_name, budget, one, other, points, p), q in zip(compared, adjusted, strict=True):
            file.write(f'{model_name},{budget},"{one}","{other}",{100 * points:+.2f},{p:.2g},{q:.2g}\n')


def row_of(model: str, budget: float, reading: str, there: dict[str, dict[tuple[float, str], Floats]]) -> str:
    """One line of the table of captures; the interval resamples the inputs of each corpus."""
    rng = np.random.default_rng(0)
    gains, rooms = np.zeros(2001), np.zeros(2001)
    for flips in there.values():
        low, high, here = flips[budget, "low"], flips[budget, "high"], flips[budget, reading]
        drawn = np.vstack([np.arange(len(low)), rng.integers(0, len(low), (2000, len(low)))])
        gains += (low - here)[drawn].sum(axis=1)
        rooms += (low - high)[drawn].sum(axis=1)
    captured = gains / rooms
    bottom, top = np.quantile(captured[1:], [0.025, 0.975])
    all_low, all_high = (
        np.concatenate([flips[budget, end] for flips in there.values()]).mean() for end in ("low", "high")
    )
    n = sum(len(flips[budget, "low"]) for flips in there.values())
    figures = ",".join(f"{value:.3f}" for value in (captured[0], bottom, top))
    return f'{model},{budget},"{reading}",{figures},{len(there)},{n},{all_low:.4f},{all_high:.4f}'


SHOWN = {
    OURS: "#0b6e4f",
    PAPER: "#1f4e9e",
    "query side, median, not by size": "#7a9bd1",
    BASE: "#b3541e",
    "activation error, by size": "#8a6d1b",
    "random": "#7f7f7f",
}
"""The readings of the figure, and their colours."""


def figure(capture: Path, file: Path) -> None:
    """Draw capture against budget, a panel for each model."""
    import matplotlib as mpl  # noqa: PLC0415 -- the other steps do without
    from matplotlib import pyplot  # noqa: PLC0415

    mpl.rcParams["svg.hashsalt"], mpl.rcParams["font.size"] = "0", 9
    with capture.open(encoding="utf-8", newline="") as opened:
        lines = list(csv.DictReader(opened))
    models = list(dict.fromkeys(line["model"] for line in lines))
    drawn, panels = pyplot.subplots(1, len(models), figsize=(3.2 * len(models) + 0.6, 3.6), sharey=True, squeeze=False)
    for panel, model in zip(panels[0], models, strict=True):
        for number, (reading, colour) in enumerate(SHOWN.items()):
            of = [line for line in lines if (line["model"], line["reading"]) == (model, reading)]
            at = [float(line["budget"]) + 0.012 * (number - 2.5) for line in of]
            value, low, high = ([float(line[name]) for line in of] for name in ("capture", "low", "high"))
            bars = [np.subtract(value, low), np.subtract(high, value)]
            panel.errorbar(at, value, bars, color=colour, label=reading, marker="o", markersize=3, capsize=2, lw=1)
        answers = max(int(line["inputs"]) for line in lines if line["model"] == model)
        panel.set_title(f"{model}, {answers:,} answers", fontsize=9)
        panel.set(xticks=sorted(BUDGETS), xlim=(3.2, 3.8))
        panel.set_xlabel("bits per weight")
    panels[0][0].set_ylabel("share of the way from W3 to W4")
    drawn.legend(*panels[0][0].get_legend_handles_labels(), loc="lower center", ncols=len(SHOWN), frameon=False)
    pyplot.tight_layout(rect=(0, 0.07, 1, 1))
    pyplot.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    words = sys.argv[1:]
    draws = int(words.pop(words.index("--draws") + 1)) if "--draws" in words else 5
    budgets = words.pop(words.index("--budgets") + 1).split(",") if "--budgets" in words else BUDGETS
    gptq = "--gptq" in words
    words = [word for word in words if not word.startswith("--")]
    if words[0] == "measure":
        points = [(draw, float(budget)) for draw, budget in product(range(draws), budgets)]
        measure(words[1], Path(words[2]), [Path(word) for word in words[3:]], points, gptq)
    elif words[0] == "figure":
        figure(Path(words[1]), Path(words[2]))
    else:
        tables(Path(words[1]), Path(words[2]), Path(words[3]))
