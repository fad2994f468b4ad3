"""Gemma as an encoder, and rotations that its weights absorb: `python gemma_encoder.py train|rotate ...`.

train MODEL PAIRS CUT OUT   last-token pooling, fine-tuned by contrast on the pairs of PAIRS, a folder in BEIR's layout,
                            without those of which a text is in CUT, another one
rotate MODEL OUT            the same model with its rows and columns turned: a folder of an encoder or of a causal model
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
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from quantdrift.evidence.perturbation import flips
from quantdrift.runs.folder import find_runs
from quantdrift.statistics.paired import mcnemar_exact
from quantdrift_paper.training import descend

STEPS, BATCH, RATE, TEMPERATURE, LENGTH = 120, 24, 5e-5, 0.05, 32


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


@torch.no_grad()
def rotate(model: torch.nn.Module, head: torch.nn.Linear | None) -> str:
    """Turn values in each head, and the residual stream where nothing stands between a layer's output and it.

    A norm whose scales stand behind a layer, as Gemma's, lets no rotation through: scales and rotation do not commute,
    and neither can go into the layer, as the norm is of its output. An encoder's stream stays, too: it has no head to
    turn it back.
    """
    config, layers = model.config, model.layers
    stream = head is not None and not hasattr(layers[0], "pre_feedforward_layernorm")
    wide = turn(config.hidden_size) if stream else None

    def put(layer: torch.nn.Module, weight: Tensor) -> None:
        layer.weight.copy_(weight.float())

    for layer in layers:
        attention, mlp = layer.self_attn, layer.mlp
        small = torch.block_diag(*[turn(config.head_dim)] * config.num_key_value_heads)
        put(attention.v_proj, small @ attention.v_proj.weight.double())
        back = torch.block_diag(*[small[: config.head_dim, : config.head_dim].T] * config.num_attention_heads)
        put(attention.o_proj, attention.o_proj.weight.double() @ back)
        if wide is None:
            continue
        for norm, inputs in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            for taking in inputs:
                put(taking, (taking.weight.double() * norm.weight.double()) @ wide.T)
            norm.weight.fill_(1.0)
        for giving in (attention.o_proj, mlp.down_proj):
            put(giving, wide @ giving.weight.double())
    if wide is None or head is None:
        return "values in each head"
    put(head, (head.weight.double() * model.norm.weight.double()) @ wide.T)
    put(model.embed_tokens, model.embed_tokens.weight.double() @ wide.T)
    model.norm.weight.fill_(1.0)
    return "values in each head and the residual stream"


def rotated(folder: Path, out: Path) -> None:
    """Rotate the model of a folder; what it gives for a text must stay the same but for the rounding of float32."""
    torch.manual_seed(0)
    probe = "A man rides a horse along the beach while the sun goes down."
    if (folder / "modules.json").exists():
        encoder = SentenceTransformer(str(folder), device="cpu")
        before = encoder.encode(probe, convert_to_tensor=True)
        what = rotate(encoder[0].auto_model, None)
        after = encoder.encode(probe, convert_to_tensor=True)
        save = [encoder.save]
    else:
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        inputs = tokenizer(probe, return_tensors="pt")
        with torch.no_grad():
            before = model(**inputs).logits
            if model.config.tie_word_embeddings and not hasattr(model.model.layers[0], "pre_feedforward_layernorm"):
                model.config.tie_word_embeddings = False
                model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
            what = rotate(model.model, model.lm_head)
            after = model(**inputs).logits
        save = [model.save_pretrained, tokenizer.save_pretrained]
    moved = float((after - before).abs().max() / before.abs().max())
    if not moved < 1e-4:
        sys.exit(f"expected the same output; it moved by {moved:.1e} of its largest number")
    for write in save:
        write(str(out))
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
        rotated(*map(Path, given))
    else:
        compare(Path(given[0]), given[1], Path(given[2]), Path(given[3]))
