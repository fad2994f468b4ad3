"""Trains a small ViT on labelled images, in minutes on two cores: a classifier that was trained end to end.

    python -m quantdrift_paper.train_vit --data cifar10.npz --out ./vit
    quantdrift contrast ./vit@W4 --data cifar10.npz

The data are those of `quantdrift run`: a .npz file or folders of images, all of one size, with a labelled train part.
The folder is a model that transformers loads. It is a plain ViT: patches, blocks, a linear head on the first token.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

from quantdrift.base.errors import DataError
from quantdrift.data.labelled import Labelled
from quantdrift_paper.training import descend, images_of, script

PATCH, WIDTH, DEPTH, HEADS = 4, 128, 6, 4
EPOCHS, BATCH, RATE, SMOOTHING, SHIFT = 45, 64, 1e-3, 0.1, 4
_TESTED = 250
"""Images that are classified at once."""


def trained(part: Labelled, *, epochs: int = EPOCHS) -> Any:
    """A ViT fitted to labelled images, by AdamW with warm-up and cosine decay.

    Args:
        part: images of one size, whole patches wide and high, and their labels.
        epochs: passes over the images, each flipped and shifted by chance.

    Raises:
        DataError: there are no labels of two classes, or the images do not fit.
    """
    names = sorted(set(part.labels or ()), key=lambda name: (len(name), name))  # numbers in their order
    if len(names) < 2:  # noqa: PLR2004 -- nothing to tell apart otherwise
        raise DataError(f"expected train images with labels of two classes or more, got {len(names)}")
    images, numbers = pixels(part), {name: number for number, name in enumerate(names)}
    targets = torch.tensor([numbers[label] for label in part.labels or ()])
    shape = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS}
    shape |= {"image_size": images.shape[-1], "patch_size": PATCH, "intermediate_size": 2 * WIDTH}
    kinds: Any = (ViTConfig, ViTForImageClassification)
    model = kinds[1](kinds[0](**shape, id2label=dict(enumerate(names)), label2id=numbers))
    entropy = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)

    def loss_of(rows: Tensor) -> Tensor:
        loss: Tensor = entropy(model(pixel_values=shifted(_mirrored(images[rows]))).logits, targets[rows])
        return loss

    steps = epochs * -(-len(images) // BATCH)
    descend(model.train(), batches(len(images), epochs, BATCH), loss_of, steps=steps, rate=RATE, decay=0.05)
    return model.eval()


def batches(n: int, epochs: int, size: int) -> Iterator[Tensor]:
    """Rows of n, in another order in each pass."""
    for _ in range(epochs):
        yield from torch.split(torch.randperm(n), size)


def pixels(part: Labelled, patch: int = PATCH) -> Tensor:
    """The images as the processor of the model gives them, from -1 to 1 [n, 3, side, side]."""
    shapes = sorted({np.shape(image) for image in part.inputs})
    if len(shapes) != 1 or shapes[0][0] != shapes[0][1] or shapes[0][0] % patch:
        sizes = ", ".join("x".join(map(str, shape[:2])) for shape in shapes[:3])
        raise DataError(f"expected square images of one size, a multiple of {patch} pixels; got {sizes}")
    return torch.from_numpy(np.stack(list(part.inputs))).permute(0, 3, 1, 2).float() / 127.5 - 1


def _mirrored(batch: Tensor) -> Tensor:
    """Mirror each image or not, at random."""
    return torch.where(torch.rand(len(batch), 1, 1, 1) < 0.5, batch.flip(3), batch)  # noqa: PLR2004 -- one of two


def shifted(batch: Tensor) -> Tensor:
    """Cut a crop of each image that is shifted by up to four pixels."""
    n, side = len(batch), batch.shape[-1]
    padded = nn.functional.pad(batch, (SHIFT,) * 4, mode="reflect")
    (down, right), along = torch.randint(0, 2 * SHIFT + 1, (2, n, 1)), torch.arange(side)
    images = torch.arange(n)[:, None, None]
    return padded[images, :, (down + along)[:, :, None], (right + along)[:, None, :]].permute(0, 3, 1, 2)


# --- The command ----------------------------------------------------------------------------------


def accuracy(model: Any, part: Labelled) -> float:
    """Share of images whose class is right."""
    with torch.no_grad():
        logits = torch.cat([model(pixel_values=batch).logits for batch in torch.split(pixels(part), _TESTED)])
    names = [model.config.id2label[number] for number in logits.argmax(1).tolist()]
    return float(np.mean([name == label for name, label in zip(names, part.labels or (), strict=True)]))


def work(options: argparse.Namespace) -> str:
    """Train, keep the model, say how good it is."""
    train, test = images_of(options.data)
    model = trained(train, epochs=options.epochs)
    side, reader = model.config.image_size, cast(Any, ViTImageProcessorPil)
    reader(size={"height": side, "width": side}).save_pretrained(options.out)
    model.save_pretrained(options.out)
    return f"; {accuracy(model, test):.1%} of {len(test.ids):,} test images right" if test.labels else ""


main = script(work, data=".npz file or folder of images, with a train part", epochs=EPOCHS)

if __name__ == "__main__":
    main()
