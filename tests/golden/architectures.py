"""What is quantized of architectures of transformers: tiny models with random weights, a row of data each.

    python tests/golden/architectures.py           # what differs from expected/architectures.json, with exit code 1
    python tests/golden/architectures.py --write   # write that file and docs/measured/architectures.md anew
    python tests/golden/architectures.py NAME ...  # print these, without comparing

Every model is saved as its users save it and opened as `quantdrift run FOLDER@W4-rtn` opens it. Its outputs are held
against those of the module that was saved, as transformers' own class gives them.
"""

import inspect
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import inputs  # noqa: E402 -- beside this file
import numpy as np  # noqa: E402 -- after the path
import torch  # noqa: E402 -- likewise
import transformers as hf  # noqa: E402 -- likewise
import yaml  # noqa: E402 -- likewise
from torch import nn  # noqa: E402 -- likewise

from golden import as_text, differences, file_of  # noqa: E402 -- likewise
from quantdrift.asking.opening import load_pair  # noqa: E402 -- likewise
from quantdrift.base.errors import QuantDriftError  # noqa: E402 -- likewise
from quantdrift.base.progress import Silent  # noqa: E402 -- likewise
from quantdrift.candidate.pair import QuantizedPair  # noqa: E402 -- likewise
from quantdrift.models.inputs import Inputs  # noqa: E402 -- likewise
from quantdrift.spec.grammar import parse  # noqa: E402 -- likewise
from quantdrift_paper.train_clip import processor_of  # noqa: E402 -- likewise
from support.model_zoo import COMMON, DECODER, IMAGE, OF_IMAGES  # noqa: E402 -- likewise
from support.places import ROOT  # noqa: E402 -- likewise

FILE = file_of("architectures")
PAGE = ROOT / "docs" / "measured" / "architectures.md"

OWN = ("config", "like", "pooling", "rows", "use")
"""Entries of a row that are no setting of its configuration."""
MODELS = {"search": "AutoModel", "captions": "AutoModel", "images": "AutoModelForImageClassification"}
"""Of transformers, by use; of others ...ForSequenceClassification."""
CLOSE = 1e-4
"""Outputs that are equal but for the order of sums, in standard deviations of all of them."""
BATCH = 8
TEXTS = [" ".join(text.split()[: 3 + 2 * (row % 6)]) for row, text in enumerate(inputs.documents().values())][::5]
"""Texts of three to thirteen words."""


def rows() -> dict[str, dict[str, Any]]:
    """Every architecture with the settings of its configuration."""
    read = yaml.safe_load((HERE / "architectures.yaml").read_text(encoding="utf-8"))
    shared = {"common": COMMON, "decoder": DECODER, "images": OF_IMAGES, **read["sizes"]}

    def whole(row: dict[str, Any]) -> dict[str, Any]:
        return {**(whole(shared[row["like"]]) if "like" in row else {}), **row}

    return {name: whole(row) for name, row in read["architectures"].items()}


# --- a model, as its users save it ----------------------------------------------------------------


def save(row: dict[str, Any], folder: Path) -> tuple[Any, Any]:
    """Make a model, save it, and return it with its tokenizer or processor."""
    use, given = row.get("use", "search"), {name: value for name, value in row.items() if name not in OWN}
    reader: Any = inputs.word_tokenizer()
    if use == "images":
        reader = hf.ViTImageProcessorPil(size={"height": IMAGE, "width": IMAGE})
    elif use == "captions":
        reader = processor_of(inputs.vocabulary(), IMAGE)
        tokens = {f"{name}_token_id": getattr(reader.tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
        text = {**COMMON, "vocab_size": len(reader.tokenizer), "projection_dim": 24, **tokens}
        given |= {"text_config": text, "vision_config": OF_IMAGES}
    else:
        given |= {"vocab_size": row.get("rows", len(reader)), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
        if given.get("max_position_embeddings") == COMMON["max_position_embeddings"]:
            given["max_position_embeddings"] = reader.model_max_length
    if use in {"classes", "images", "shortlist"}:
        given["num_labels"] = 1 if use == "shortlist" else 3
    torch.manual_seed(0)
    maker: Any = getattr(hf, MODELS.get(use, "AutoModelForSequenceClassification"))
    model = maker.from_config(getattr(hf, row["config"])(**given)).eval()
    for parameter in model.parameters():  # zeros and ones hide what is lost or not used
        if parameter.is_floating_point() and parameter.numel() > 1 and not parameter.detach().std():
            nn.init.normal_(parameter, float(parameter.detach().mean()), 0.1)
    model.save_pretrained(folder)
    reader.save_pretrained(folder)
    if use == "search":
        parts = {"": "Transformer", "1_Pooling": "Pooling"}
        listed = [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for n, (path, kind) in enumerate(parts.items())
        ]
        pooling = {"word_embedding_dimension": model.config.hidden_size, "pooling_mode": row.get("pooling", "mean")}
        (folder / "1_Pooling").mkdir()
        (folder / "modules.json").write_text(json.dumps(listed))
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return model, reader


def given_to(use: str) -> list[tuple[str, list[Any]]]:
    """Inputs by role: what a model of this use is measured on."""
    pictures = list(np.random.default_rng(0).integers(0, 256, (12, IMAGE, IMAGE, 3), dtype=np.uint8))
    sides: dict[str, list[tuple[str, list[Any]]]] = {
        "images": [("input", pictures)],
        "captions": [("query", TEXTS), ("document", pictures)],
        "shortlist": [("pair", [(text.split()[-1], text) for text in TEXTS])],
        "classes": [("input", TEXTS)],
    }
    return sides.get(use, [("document", TEXTS)])


def outputs(model: Any, reader: Any, row: dict[str, Any], item: Any) -> Any:
    """The embedding or the logits of one input by transformers' own class, without anything of this project."""
    use = row.get("use", "search")
    if isinstance(item, np.ndarray):
        pixels = getattr(reader, "image_processor", reader)(item, return_tensors="pt")
        given = model(**pixels).logits if use == "images" else model.get_image_features(**pixels)
    else:
        read = getattr(reader, "tokenizer", reader)(*([[part] for part in item] if use == "shortlist" else [[item]]))
        known = inspect.signature(model.forward).parameters
        tokens = {name: torch.tensor(value) for name, value in read.items() if name in known}
        given = model.get_text_features(**tokens) if use == "captions" else model(**tokens)
        if use == "search":
            states = given.last_hidden_state[0]
            ways = {"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1]}
            return ways[row.get("pooling", "mean")][None].numpy()
        given = getattr(given, "logits", given)
    return getattr(given, "pooler_output", given).numpy()


# --- what the product makes of it -----------------------------------------------------------------


def surveyed(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Open a model and tell what is quantized of it, what is not, and whether the figures are of this model."""
    use = row.get("use", "search")
    model, reader = save(row, folder)
    kind: Any = {"classes": "text", "images": "image"}.get(use)
    try:
        pair = load_pair(parse(f"{folder}@W4-rtn"), kind, reranks=use == "shortlist", device="cpu")
    except QuantDriftError as refusal:
        return {"class": type(model).__name__, "refused": _plain(refusal, folder)}
    assert isinstance(pair, QuantizedPair)
    sides = given_to(use)

    def encode(n: int = BATCH, batch_size: int = BATCH) -> list[Any]:
        return [pair.encoder.encode(items[:n], role, batch_size) for role, items in sides]

    for role, items in sides:  # each by itself, as in a measurement
        with pair.observed():
            pair.encoder.encode(items[:BATCH], role, BATCH)
    reached = {layer.name for layer in pair.layers} - {*pair.never_reached}
    opened = next(part for part in pair.encoder.module.modules() if isinstance(part, hf.PreTrainedModel))
    loaded = getattr(getattr(pair.encoder, "model", None), "tokenizer", reader)
    as_saved = loaded is reader or use == "captions" or loaded(TEXTS)["input_ids"] == reader(TEXTS)["input_ids"]
    body = model if type(opened) is type(model) else model.get_encoder()
    with torch.no_grad():
        own = [_each(body, reader if as_saved else loaded, row, items[:BATCH]) for _, items in sides]
    batch, alone, needed = encode(), encode(batch_size=1), _needed(pair, encode)
    with pair.candidate():
        rounded = encode()
    bits = pair.bits()
    return {
        "class": type(opened).__name__,
        "notes": [_plain(note, folder) for note in pair.notes],
        "layers": len(pair.layers),
        "share": round(bits.n_quantized / bits.n_parameters, 4),
        "bits": {"linear": bits.linear_with_scales, "all": bits.all_parameters},
        **_beside(pair),
        "left_out": _counted(pair.left_out),
        "never_reached": _count(pair.never_reached),
        "needed_but_not_reached": _count(needed - reached),
        "reached_but_not_needed": _count(reached - needed),
        "reads": _reads(pair) if use == "search" else "",
        "tokens": "as saved" if as_saved else f"by other rules: {type(loaded).__name__}",
        "is_what_transformers_computes": _close(alone, own),
        "is_the_same_in_a_batch": _close(batch, alone),
        "changes": not _close(rounded, batch),
        "is_undone": all(np.array_equal(left, right) for left, right in zip(encode(), batch, strict=True)),
        "gptq": _calibrated(pair, sides),
    }


def _each(model: Any, reader: Any, row: dict[str, Any], items: Sequence[Any]) -> Any:
    return np.concatenate([outputs(model, reader, row, item) for item in items])


def _close(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether outputs of every side are equal but for noise, and in shape."""
    return all(a.shape == b.shape and np.abs(a - b).max() <= CLOSE * b.std() for a, b in zip(left, right, strict=True))


def _plain(text: object, folder: Path) -> str:
    return str(text).replace(str(folder), "FOLDER")


def _needed(pair: QuantizedPair, encode: Any) -> set[str]:
    """Names of layers with zeros for which the outputs are others."""
    before, needed = encode(), set()
    for layer in pair.layers:
        kept = layer.weight.clone()
        layer.weight.zero_()
        if any(not np.array_equal(left, right) for left, right in zip(encode(), before, strict=True)):
            needed.add(layer.name)
        layer.weight.copy_(kept)
    return needed


def _short(name: str) -> str:
    """A name that those of all blocks share."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", re.sub(r"^0\.(model\.)?", "", name))


def _count(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(map(_short, names)).items()))


def _counted(reasons: dict[str, str]) -> dict[str, dict[str, int]]:
    """Names by reason."""
    return {why: _count(name for name, its in reasons.items() if its == why) for why in dict.fromkeys(reasons.values())}


def _beside(pair: QuantizedPair) -> dict[str, Any]:
    """Shares of all parameters that no width is of; and whether the pair counts all matrices among them."""
    named = {name: value for root in pair.modules for name, value in root.named_parameters()}
    tables = {id(part.weight) for root in pair.modules for part in root.modules() if isinstance(part, nn.Embedding)}
    layers = {id(layer.parameter) for layer in pair.layers}
    shares, others, matrices = Counter[str](), [], 0
    for name, value in named.items():
        if id(value) not in layers:
            kind = "embeddings" if id(value) in tables else "vectors" if value.dim() <= 1 else "others"
            kind = "left out" if any(f"{name}.".startswith(f"{path}.") for path in pair.left_out) else kind
            shares[kind] += value.numel()
            others += [f"{name} {list(value.shape)}"] if kind == "others" else []
            matrices += value.numel() if value.dim() > 1 else 0
    total = sum(value.numel() for value in named.values())
    return {
        "beside": {kind: round(n / total, 4) for kind, n in shares.items()},
        "others": _count(others),
        "counts_what_stays": sum(pair.describe()["not_quantized"].values()) == matrices,
    }


def _reads(pair: QuantizedPair) -> str:
    """Whether the last word of a text changes what its first token becomes."""
    text = TEXTS[5].rpartition(" ")[0]
    texts = [f"{text} {word}" for word in ("winter", "garden")]
    first, second = pair.encoder.model.encode(texts, output_value="token_embeddings", convert_to_tensor=True)
    return "left to right" if torch.allclose(first[0], second[0], atol=1e-6) else "both ways"


def _calibrated(pair: QuantizedPair, sides: Sequence[tuple[str, Sequence[Any]]]) -> dict[str, Any]:
    """What GPTQ makes of it: the layers that it rounds to nearest, by reason, or why it does not run."""
    other = QuantizedPair(pair.modules, "W4-gptq", encoder=pair.encoder)
    given = [Inputs(role=r, ids=[str(n) for n in range(len(items))], items=items, digest=None) for r, items in sides]
    try:
        other.calibrate(given, BATCH, source="corpus", root=None, progress=Silent())
    except QuantDriftError as refusal:
        return {"refused": str(refusal)}
    return {"rounded_to_nearest": _counted(other.describe()["fallbacks"])}


def survey(only: Sequence[str] = ()) -> dict[str, Any]:
    """Every architecture, or some, by name."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    found = {}
    for name, row in rows().items():
        if not only or name in only:
            with tempfile.TemporaryDirectory() as folder:
                found[name] = surveyed(row, Path(folder))
    return found


# --- the page -------------------------------------------------------------------------------------

INTRODUCTION = """\
# Which layers of an architecture are quantized

{n} architectures of transformers {version}, tiny and with random weights: saved as their users save them, opened as
`quantdrift run FOLDER@W4-rtn` opens them. `python tests/golden/architectures.py --write` makes this page and the
figures behind it, and `make golden` compares them. Shares are of these sizes; embeddings weigh less in a wide model.

**bits** are those of W4 over all parameters, scales included. **reads** says whether a word changes what stands before
it. **stays** is at full precision, beside norms, biases and other vectors. **unused** layers are quantized and change
no output. **GPTQ** names the layers that W4-gptq rounds to nearest, as no input of theirs is seen.

Outputs of what was opened are those of transformers' own class, of the module that was saved, to {close:g} of their
spread{but}. Zeros in place of a layer change an output if and only if it counts as used{unless}.

| architecture | layers | share | bits | reads | stays | unused | GPTQ |
|---|---|---|---|---|---|---|---|
"""
REMARKS: dict[str, tuple[str, Any]] = {
    "Nothing that an output depends on is quantized": (
        "The candidate would be the reference, and a run refuses it.",
        lambda found: not found["changes"] and _inside(found["others"]),
    ),
    "An output depends on the texts that share its batch": (
        "These read padding as text. The noise floor of a run shows how much that moves.",
        lambda found: not found["is_the_same_in_a_batch"] and found["class"],
    ),
    "What a run says of it": ("", lambda found: "; ".join(found["notes"])),
}
"""Headings of the page: a sentence on them, and what they say of an architecture, if anything."""


def page() -> str:
    """The page, of the kept survey."""
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    found = {name: kept["architectures"][name] for name in rows()}  # in the order of the rows
    opened = {name: one for name, one in found.items() if "refused" not in one}
    other = [name for name, one in opened.items() if not one["is_what_transformers_computes"]]
    wrong = [name for name, one in opened.items() if one["needed_but_not_reached"] or one["reached_but_not_needed"]]
    said = {"but": f", but {', '.join(other)}" if other else "", "unless": f", but {', '.join(wrong)}" if wrong else ""}
    text = INTRODUCTION.format(n=len(found), version=kept["transformers"], close=CLOSE, **said)
    text += "".join(f"| {' | '.join((name, *_cells(one)))} |\n" for name, one in opened.items())
    text += _told("Refused", "", {name: one["refused"] for name, one in found.items() if "refused" in one})
    for title, (sentence, say) in REMARKS.items():
        text += _told(title, sentence, {name: what for name, one in opened.items() if (what := say(one))})
    return text


def _told(title: str, sentence: str, told: dict[str, str]) -> str:
    lines = [
        f"\n## {title}\n",
        *([f"{sentence}\n"] if sentence else []),
        *(f"- {name}: {what}" for name, what in told.items()),
    ]
    return "\n".join([*lines, ""]) if told else ""


def _inside(names: Iterable[str]) -> str:
    """Names within their block, each once."""
    return ", ".join(dict.fromkeys(name.partition(" ")[0].removesuffix(".*").rpartition("*.")[2] for name in names))


def _cells(one: dict[str, Any]) -> Iterator[str]:
    yield from (str(one["layers"]), f"{one['share']:.0%}", f"{one['bits']['all']:.1f}", one["reads"])
    stays = [f"embeddings {one['beside']['embeddings']:.0%}"] if "embeddings" in one["beside"] else []
    stays += [f"{_inside(names)} ({why})" for why, names in one["left_out"].items()]
    stays += [f"{_inside(one['others'])} {one['beside']['others']:.1%}"] if one["others"] else []
    yield "; ".join(stays)
    yield _inside(one["never_reached"])
    made = one["gptq"]
    yield made.get("refused") or _inside(name for names in made["rounded_to_nearest"].values() for name in names)


def main(arguments: Sequence[str]) -> int:
    """The command line of this script."""
    names = [name for name in arguments if not name.startswith("--")]
    found = survey(names)
    if names:
        print(json.dumps(found, indent=1))
        return 0
    if "--write" in arguments:
        FILE.write_text(as_text({"transformers": hf.__version__, "architectures": found}), encoding="utf-8")
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    told = list(differences(json.loads(FILE.read_text(encoding="utf-8"))["architectures"], found))
    print("\n".join(told))
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
