"""Trains a small ViT on 2,000 images of CIFAR-10, in minutes on two cores, and keeps it.

    python tests/benchmarks/small_vit.py cifar10_4k.npz small-vit

The file holds x_train and y_train (uint8 [n, 32, 32, 3] and class numbers); the folder then is a
model that transformers loads, and `quantdrift run ./small-vit@W4-rtn --data cifar10_4k.npz` too. It
is trained again only if it is not there. Accuracy is that of a small model on few images: what
matters here is a classifier that was trained end to end, as no probe is.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZE, PATCH, WIDTH, DEPTH = 32, 4, 128, 6
EPOCHS, BATCH, RATE, SMOOTHING = 60, 64, 1e-3, 0.1


def trained(data: Path, folder: Path, *, epochs: int = EPOCHS) -> Path:
    """The folder of the model, trained now if it is not there.

    Args:
        data: .npz file with x_train and y_train.
        folder: where it is kept; written when training is complete.
        epochs: passes over the images.
    """
    if (folder / "config.json").is_file():
        return folder
    with np.load(data) as arrays:
        images, labels = arrays["x_train"], arrays["y_train"]
    model = train(images, labels, epochs=epochs)
    folder.mkdir(parents=True, exist_ok=True)
    ViTImageProcessorPil(size={"height": SIZE, "width": SIZE}).save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def train(images: np.ndarray, labels: np.ndarray, *, epochs: int, seed: int = 0) -> ViTForImageClassification:
    """A ViT fitted to some images, by AdamW with warm-up and cosine decay.

    Args:
        images: uint8 [n, 32, 32, 3].
        labels: class numbers [n].
        epochs: passes over the images, each flipped and shifted by chance.
        seed: of weights, order and augmentation.
    """
    torch.manual_seed(seed)
    model = ViTForImageClassification(
        ViTConfig(
            image_size=SIZE,
            patch_size=PATCH,
            hidden_size=WIDTH,
            num_hidden_layers=DEPTH,
            num_attention_heads=4,
            intermediate_size=2 * WIDTH,
            hidden_dropout_prob=0.1,
            id2label=dict(enumerate(CLASSES)),
            label2id={name: number for number, name in enumerate(CLASSES)},
        )
    )
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    targets = torch.from_numpy(np.asarray(labels, dtype=np.int64).ravel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    steps = epochs * -(-len(pixels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps, pct_start=0.1)
    loss_of = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    model.train()
    for epoch in range(epochs):
        start, right = time.perf_counter(), 0
        for rows in torch.randperm(len(pixels)).split(BATCH):
            logits = model(pixel_values=_augmented(pixels[rows])).logits
            loss = loss_of(logits, targets[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
            optimizer.step()
            schedule.step()
            right += int((logits.argmax(1) == targets[rows]).sum())
        seconds = time.perf_counter() - start
        print(
            f"epoch {epoch + 1}/{epochs}: {right / len(pixels):.1%} of the training images right, {seconds:.1f} s",
            file=sys.stderr,
        )
    return model.eval()


def _augmented(batch: Tensor) -> Tensor:
    """Each image mirrored or not, and shifted by up to four pixels."""
    mirrored = torch.rand(len(batch)) < 0.5
    batch = torch.where(mirrored[:, None, None, None], batch.flip(3), batch)
    padded = nn.functional.pad(batch, (4, 4, 4, 4), mode="reflect")
    down, right = torch.randint(0, 9, (2,)).tolist()
    return padded[:, :, down : down + SIZE, right : right + SIZE]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help=".npz file with x_train and y_train")
    parser.add_argument("folder", type=Path, help="where the model is kept")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    print(trained(options.data, options.folder, epochs=options.epochs))
