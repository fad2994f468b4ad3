"""Trains a small CLIP on images and captions made of them, in minutes on two cores, and writes the search to test it.

    python -m quantdrift_paper.train_clip --data cifar10.npz --out ./clip
    quantdrift run ./clip/small-clip@W4 --data ./clip/captions

The images are those of `quantdrift run`: a .npz file or folders of images, all of one size, with a train part. A
caption says what tells an image apart: its label, colours, brightness, where it is lighter. Two images seldom share
all of it, and every caption that occurs once is a query with one right image.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPProcessor, PreTrainedTokenizerFast

from quantdrift.base.errors import DataError
from quantdrift.data.labelled import Labelled
from quantdrift_paper.train_vit import batches, pixels, shifted
from quantdrift_paper.training import descend, images_of, script

PATCH, VISION, TEXT, JOINT = 8, (6, 192, 6), (3, 128, 4), 128
"""Blocks, width and heads of either tower, and dimensions of the space that both share."""
EPOCHS, BATCH, RATE, LONGEST = 60, 200, 1e-3, 32
_START, _END, _UNKNOWN = "<|startoftext|>", "<|endoftext|>", "<unknown>"
_LIGHT = ("very dark", "dark", "dim", "bright", "very bright")
_CONTRAST = ("flat", "soft", "clear", "harsh")
_COLOURS = {
    "black": (25, 25, 25), "grey": (125, 125, 125), "white": (230, 230, 230), "red": (170, 50, 45),
    "brown": (110, 80, 55), "orange": (205, 130, 60), "yellow": (200, 185, 90), "green": (75, 115, 65),
    "teal": (80, 145, 145), "blue": (70, 110, 175), "purple": (120, 85, 140), "beige": (195, 175, 145),
}  # fmt: skip


# --- Captions -------------------------------------------------------------------------------------


def caption(image: NDArray[np.uint8], label: str) -> str:
    """Describe an image uint8 [height, width, 3] of a label."""
    side = image.shape[0]
    inner = slice(side // 4, side - side // 4)
    numbers = image.astype(np.float64)
    grey = numbers.mean(axis=2)
    centre, around = numbers[inner, inner].mean(axis=(0, 1)), np.delete(numbers, np.r_[inner], axis=0).mean(axis=(0, 1))
    light = _LIGHT[int(np.searchsorted((80, 105, 130, 160), grey.mean()))]
    contrast = _CONTRAST[int(np.searchsorted((38, 50, 64), grey.std()))]
    halves = {
        "top": grey[: side // 2].mean() - grey[side // 2 :].mean(),
        "left": grey[:, : side // 2].mean() - grey[:, side // 2 :].mean(),
    }
    where = max(halves, key=lambda name: abs(halves[name]))
    lighter = where if halves[where] > 0 else {"top": "bottom", "left": "right"}[where]
    return f"a {light} {contrast} photo of a {_colour(centre)} {label} on {_colour(around)}, lighter at the {lighter}"


def _colour(rgb: NDArray[np.float64]) -> str:
    return min(_COLOURS, key=lambda name: float(np.square(rgb - _COLOURS[name]).sum()))


def captions(part: Labelled, names: Sequence[str]) -> list[str]:
    """Return a caption for each image; `names` are put for labels that are numbers."""
    labels = part.labels or ("thing",) * len(part.ids)
    called = [names[int(label)] if label.isdecimal() and int(label) < len(names) else label for label in labels]
    return [caption(np.asarray(image), name) for image, name in zip(part.inputs, called, strict=True)]


# --- The model ------------------------------------------------------------------------------------


def trained(part: Labelled, texts: Sequence[str], words: Sequence[str], *, epochs: int = EPOCHS) -> Any:
    """A CLIPModel and its processor, fitted to images and their captions by the contrastive loss of CLIP.

    Args:
        part: square images of one size.
        texts: a caption for each.
        words: that captions may have.
        epochs: passes over the images, each shifted by chance.

    Raises:
        DataError: the images do not fit.
    """
    images = pixels(part, PATCH)
    processor = processor_of(words, int(images.shape[-1]))
    tokenizer = processor.tokenizer
    tokens = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads")
    of_text, seen = (dict(zip(names, of, strict=True)) | {"intermediate_size": 2 * of[1]} for of in (TEXT, VISION))
    of_text |= {"vocab_size": len(tokenizer), "max_position_embeddings": LONGEST}
    of_text |= {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    seen |= {"image_size": images.shape[-1], "patch_size": PATCH}
    config: Any = CLIPConfig(text_config=of_text, vision_config=seen, projection_dim=JOINT)
    model: Any = CLIPModel(config)
    limit = float(np.log(100))

    def loss_of(rows: Tensor) -> Tensor:
        model.logit_scale.data.clamp_(max=limit)
        text = {name: value[rows] for name, value in tokens.items()}
        loss: Tensor = model(pixel_values=shifted(images[rows]), **text, return_loss=True).loss
        return loss

    steps = epochs * -(-len(images) // BATCH)
    descend(model.train(), batches(len(images), epochs, BATCH), loss_of, steps=steps, rate=RATE, decay=0.05)
    model.logit_scale.data.clamp_(max=limit)
    return model.eval(), processor


def processor_of(words: Sequence[str], side: int) -> Any:
    """Make a processor of texts of these words and of images of this side, whose pixels it maps to -1 to 1."""
    vocabulary = {word: number for number, word in enumerate([_UNKNOWN, *words, _START, _END])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(token, vocabulary[token]) for token in (_START, _END)]  # CLIP reads the embedding at the last
    plain.post_processor = TemplateProcessing(single=f"{_START} $A {_END}", special_tokens=ends)
    kinds: Any = (PreTrainedTokenizerFast, CLIPProcessor, CLIPImageProcessorPil)  # untyped there
    special = {"bos_token": _START, "eos_token": _END, "pad_token": _END, "unk_token": _UNKNOWN}
    tokenizer = kinds[0](tokenizer_object=plain, model_max_length=LONGEST, **special)
    half, size = [0.5, 0.5, 0.5], {"height": side, "width": side}
    return kinds[1](kinds[2](size=size, do_center_crop=False, image_mean=half, image_std=half), tokenizer)


# --- The command ----------------------------------------------------------------------------------


def write_search(part: Labelled, texts: Sequence[str], folder: Path) -> int:
    """Write images and captions as a folder in BEIR layout, and return the number of captions that occur once."""
    times = Counter(texts)
    queries = [(f"q{row}", text, f"{row}") for row, text in enumerate(texts) if times[text] == 1]
    if not queries:
        raise DataError("no caption occurs once, so there is no query with one right image; expected more images")
    (folder / "images").mkdir(parents=True)
    (folder / "qrels").mkdir()
    for row, image in enumerate(part.inputs):
        Image.fromarray(np.asarray(image)).save(folder / "images" / f"{row}.png")
    lines = [{"_id": f"{row}", "image": f"images/{row}.png"} for row in range(len(part.ids))]
    content = {
        "corpus.jsonl": [json.dumps(line) for line in lines],
        "queries.jsonl": [json.dumps({"_id": name, "text": text}) for name, text, _ in queries],
        "qrels/test.tsv": [f"{name}\t{image}\t1" for name, _, image in queries],
    }
    for file, rows in content.items():
        (folder / file).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return len(queries)


def work(options: argparse.Namespace) -> str:
    """Train, keep model and search, say how many there are."""
    train, test = images_of(options.data)
    called = [name.strip() for name in options.names.split(",") if name.strip()]
    shown, asked = (captions(part, called) for part in (train, test))
    words = sorted({word for text in (*shown, *asked) for word in text.replace(",", " , ").split()})
    for made in trained(train, shown, words, epochs=options.epochs):
        made.save_pretrained(options.out / "small-clip")
    n = write_search(test, asked, options.out / "captions")
    return f": model, and a search of {n:,} captions in {len(test.ids):,} images"


_NAMES = ("--names", "", "names of labels that are numbers, from 0 on, with commas between")
main = script(work, data=".npz file or folder of images, with a train part", epochs=EPOCHS, more=[_NAMES])

if __name__ == "__main__":
    main()
