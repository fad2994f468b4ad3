"""Gemma as an encoder, and rotations that its weights absorb: `python gemma_encoder.py train|rotate ...`.

train MODEL PAIRS CUT OUT   last-token pooling, fine-tuned by contrast on the pairs of PAIRS, a folder in BEIR's layout,
                            without those of which a text is in CUT, another one
rotate MODEL OUT            the same model with its rows and columns turned: a folder of an encoder or a causal model;
                            by signs that are drawn, or, with PAIRS CUT behind OUT, by rotations that are learned
compare FILE.csv NAME RUNS TURNED   a row for each scheme that both folders of runs have: changed answers, paired
"""

import csv
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from corpora import rows
from sentence_transformers import SentenceTransformer, models
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, kl_div
from transformers import AutoModelForCausalLM, AutoTokenizer

from quantdrift.builtin.rtn.work import quantize_rtn
from quantdrift.evidence.perturbation import flips
from quantdrift.runs.folder import find_runs
from quantdrift.statistics.paired import mcnemar_exact
from quantdrift_paper.training import descend

STEPS, BATCH, RATE, TEMPERATURE, LENGTH = 120, 24, 5e-5, 0.05, 32
TURNING, HELD_OUT = 0.02, 96
"""The rate of learned rotations, and texts that none is learned on."""


def pairs_of(folder: Path, cut: Path) -> list[tuple[str, str]]:
    """Queries with their relevant documents, without those of which a text is in the cut."""
    texts = [{row["_id"]: row["text"] for row in rows(folder / f"{part}.jsonl")} for part in ("queries", "corpus")]
    held_out = {row["text"] for part in ("queries", "corpus") for row in rows(cut / f"{part}.jsonl")}
    lines = [line.split("\t") for line in (folder / "qrels/test.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    pairs = [(texts[0][query], texts[1][document]) for query, document, grade in lines if int(grade) > 0]
    return [pair for pair in pairs if held_out.isdisjoint(pair)]


def train(name: str, pairs: list[tuple[str, str]], out: str) -> None:
    """Fine-tune all but the embedding matrix, in both directions within the batch."""
    random.seed(0)
    torch.manual_seed(0)
    transformer = models.Transformer(name, max_seq_length=LENGTH)
    pooling = models.Pooling(transformer.get_embedding_dimension(), pooling_mode="lasttoken")
    model = SentenceTransformer(modules=[transformer, pooling, models.Normalize()], device="cpu")
    model[0].auto_model.get_input_embeddings().requires_grad_(requires_grad=False)

    def batches() -> Iterator[list[tuple[str, str]]]:
        for _ in range(STEPS):
            yield random.sample(pairs, BATCH)

    def loss_of(batch: list[tuple[str, str]]) -> Tensor:
        left, right = (model(model.tokenize([pair[side] for pair in batch]))["sentence_embedding"] for side in (0, 1))
        alike, diagonal = left @ right.T / TEMPERATURE, torch.arange(BATCH)
        return (cross_entropy(alike, diagonal) + cross_entropy(alike.T, diagonal)) / 2

    model.train()
    descend(model, batches(), loss_of, steps=STEPS, rate=RATE, decay=0.01, clip=1.0, what=out)
    model.eval()
    model[0].max_seq_length = 512
    model.save(out)


def turn(size: int) -> Tensor:
    """A Hadamard matrix with drawn signs, orthogonal."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.kron(matrix, torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64))
    signs = torch.randint(0, 2, (size,)) * 2.0 - 1
    return matrix * signs / size**0.5


Rotations = list[Tensor]
"""Of the values in the heads of each layer, and after them, where it can be turned, of the residual stream."""


def drawn(model: torch.nn.Module, head: torch.nn.Linear | None) -> Rotations:
    """Draw a rotation for each layer's heads, and one for the residual stream where no norm ends a layer.

    A norm whose scales stand behind a layer, as Gemma's, lets no rotation through: scales and rotation do not commute,
    and neither can go into the layer, as the norm is of its output. An encoder's stream stays, too: it has no head to
    turn it back.
    """
    stream = head is not None and not hasattr(model.layers[0], "pre_feedforward_layernorm")
    wide = [turn(model.config.hidden_size)] if stream else []
    return [turn(model.config.head_dim) for _ in model.layers] + wide


def turned(model: torch.nn.Module, head: torch.nn.Linear | None, by: Rotations) -> dict[torch.nn.Module, Tensor]:
    """Module to its weight when the model is turned."""
    config, layers = model.config, model.layers
    wide = by[len(layers)] if len(by) > len(layers) else None
    found: dict[torch.nn.Module, Tensor] = {}
    for layer, small in zip(layers, by, strict=False):
        attention, mlp = layer.self_attn, layer.mlp
        value, back = (torch.block_diag(*[matrix] * count) for matrix, count in
                       ((small, config.num_key_value_heads), (small.T, config.num_attention_heads)))  # fmt: skip
        found[attention.v_proj] = value @ attention.v_proj.weight.double()
        found[attention.o_proj] = attention.o_proj.weight.double() @ back
        if wide is None:
            continue
        for norm, inputs in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            for taking in inputs:
                found[taking] = (found.get(taking, taking.weight.double()) * norm.weight.double()) @ wide.T
            found[norm] = torch.ones_like(norm.weight)
        for giving in (attention.o_proj, mlp.down_proj):
            found[giving] = wide @ found.get(giving, giving.weight.double())
    if wide is not None and head is not None:
        found[head] = (head.weight.double() * model.norm.weight.double()) @ wide.T
        found[model.embed_tokens] = model.embed_tokens.weight.double() @ wide.T
        found[model.norm] = torch.ones_like(model.norm.weight)
    return {module: weight.float() for module, weight in found.items()}


class Whole:
    """A model of a folder, an encoder or a causal model, and what it gives for texts."""

    def __init__(self, folder: Path) -> None:
        self.head, self.encoder = None, (folder / "modules.json").exists()
        if self.encoder:
            self.model = SentenceTransformer(str(folder), device="cpu").eval()
            self.inner, self.save = self.model[0].auto_model, [self.model.save]
            return
        self.model, self.tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        self.inner, self.save = self.model.model, [self.model.save_pretrained, self.tokenizer.save_pretrained]
        self.head = self.model.lm_head
        if self.model.config.tie_word_embeddings and not hasattr(self.inner.layers[0], "pre_feedforward_layernorm"):
            self.model.config.tie_word_embeddings = False
            self.head.weight = torch.nn.Parameter(self.head.weight.clone())

    def __call__(self, texts: list[str], weights: dict[str, Tensor] | None = None) -> Tensor:
        """Embeddings [n, dim], or logits of one sequence of all texts [1, n_tokens, n_words]; by other weights."""
        if self.encoder:
            args, words = (self.model.tokenize(texts),), {}
        else:
            args, words = (), self.tokenizer(" ".join(texts), return_tensors="pt", truncation=True, max_length=512)
        given = torch.func.functional_call(self.model, weights or {}, args, dict(words))
        return given["sentence_embedding"] if self.encoder else given.logits

    def apart(self, full: Tensor, other: Tensor) -> Tensor:
        """The mean of 1 - cosine of embeddings, or the mean divergence of the next word."""
        if self.encoder:
            return 1 - cosine_similarity(full, other).mean()
        return kl_div(other.log_softmax(-1), full.log_softmax(-1), log_target=True, reduction="none").sum(-1).mean()


def learned(whole: Whole, by: Rotations, texts: list[str]) -> Rotations:
    """Turn further by gradient, so that the model rounded to 3 bits gives nearly what it gives in full precision."""
    free = torch.nn.ParameterList(torch.zeros_like(matrix) for matrix in by)
    names = {module: f"{name}.weight" for name, module in whole.model.named_modules()}
    linear = {
        module for module in whole.model.modules() if isinstance(module, torch.nn.Linear) and module is not whole.head
    }

    def rounded(weight: Tensor) -> Tensor:
        group = 128 if whole.encoder else None
        return quantize_rtn(weight, bits=3, group_size=group).dequantize(torch.float32)

    fixed = {names[module]: rounded(module.weight.data) for module in linear - set(turned(whole.inner, whole.head, by))}

    def now() -> Rotations:
        return [matrix @ torch.linalg.matrix_exp(skew - skew.T) for matrix, skew in zip(by, free, strict=True)]

    def loss_of(batch: list[str]) -> Tensor:
        weights = dict(fixed)
        for module, weight in turned(whole.inner, whole.head, now()).items():
            straight = weight + (rounded(weight) - weight).detach() if module in linear else weight
            weights[names[module]] = straight
        with torch.no_grad():
            full = whole(batch)
        return whole.apart(full, whole(batch, weights))

    def held_out() -> str:
        with torch.no_grad():
            return f"{np.mean([float(loss_of(texts[at : at + BATCH])) for at in range(0, HELD_OUT, BATCH)]):.4f}"

    before = held_out()
    batches = (random.sample(texts[HELD_OUT:], BATCH) for _ in range(STEPS))
    descend(free, batches, loss_of, steps=STEPS, rate=TURNING, decay=0.0, clip=1.0, what="rotations")
    print(f"on {HELD_OUT} held-out texts the rounded model was {before} apart, and is {held_out()}")
    return [matrix.detach() for matrix in now()]


def rotate(folder: Path, out: Path, texts: list[str]) -> None:
    """Rotate the model of a folder; what it gives for a text must stay the same but for the rounding of float32."""
    random.seed(0)
    torch.manual_seed(0)
    whole = Whole(folder)
    whole.model.requires_grad_(requires_grad=False)
    by = drawn(whole.inner, whole.head)
    if texts:
        by = learned(whole, by, texts)
    probe = ["A man rides a horse along the beach while the sun goes down."]
    with torch.no_grad():
        before = whole(probe)
        for module, weight in turned(whole.inner, whole.head, by).items():
            module.weight.copy_(weight)
        moved = float((whole(probe) - before).abs().max() / before.abs().max())
    if not moved < 1e-4:
        sys.exit(f"expected the same output; it moved by {moved:.1e} of its largest number")
    for write in whole.save:
        write(str(out))
    what = "values in each head" + " and the residual stream" * (len(by) > len(whole.inner.layers))
    print(f"turned {what}; the output of one text moved by {moved:.1e} of its largest number")


def changes_in(runs: Path) -> dict[str, dict[str, np.ndarray]]:
    """Scheme to data to what changed, of finished runs; a head that stays as it is makes no other scheme."""
    found: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for run in find_runs([runs]):
        scheme = run.record["spec"].rpartition("@")[2].replace("+head=lm_head", "").replace("-g128", "")
        found[scheme][run.record["data"]["name"]] = flips(run.evidence())
    return found


def compare(file: Path, name: str, plain: Path, turned: Path) -> None:
    """Add the rows of a model to the table; those that it had go."""
    rows_of = [changes_in(folder) for folder in (plain, turned)]
    with file.open(encoding="utf-8", newline="") as opened:
        head, *lines = csv.reader(opened)
    lines = [line for line in lines if line[0] != name]
    for scheme in sorted(set(rows_of[0]) & set(rows_of[1])):
        before, after = (np.concatenate([rows[scheme][data] for data in sorted(rows[scheme])]) for rows in rows_of)
        test = mcnemar_exact(before.astype(float), after.astype(float))
        counts = [len(before), before.sum(), after.sum(), test.only_a, test.only_b]
        lines.append([name, scheme, *map(str, counts), f"{test.p_value:.2g}"])
    with file.open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened, lineterminator="\n").writerows([head, *lines])


if __name__ == "__main__":
    step, *given = sys.argv[1:]
    if step == "train":
        train(given[0], pairs_of(Path(given[1]), Path(given[2])), given[3])
    elif step == "rotate":
        pairs = pairs_of(*map(Path, given[2:])) if given[2:] else []
        rotate(Path(given[0]), Path(given[1]), sorted({text for pair in pairs for text in pair}))
    else:
        compare(Path(given[0]), given[1], Path(given[2]), Path(given[3]))
