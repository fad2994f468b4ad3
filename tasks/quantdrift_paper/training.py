"""Shared parts of scripts that train a model: the training loop, a new folder, one line of result, short errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from quantdrift.base.display import complain, say
from quantdrift.base.errors import DataError, QuantDriftError, RunError
from quantdrift.base.progress import Terminal
from quantdrift.data.labelled import Labelled, read_classification_folder

Batch = TypeVar("Batch")


def script(
    work: Callable[[argparse.Namespace], str], *, data: str, epochs: int, more: Sequence[tuple[str, Any, str]] = ()
) -> Callable[..., None]:
    """Make the entry point of a script of its work, which says what came of it.

    It takes data, out, epochs and seed; data may be left out if its help says so. `more` are further options: name,
    default (None asks for one that must be given, a path), and help. It ends the process with 2 on an error, with 130
    on Ctrl-C.
    """

    def main(arguments: list[str] | None = None) -> None:
        module = sys.modules[work.__module__]
        name = module.__spec__.name if module.__spec__ else work.__module__
        parser = argparse.ArgumentParser(prog=f"python -m {name}", description=str(module.__doc__).partition("\n")[0])
        parser.add_argument("--data", type=Path, required="by default" not in data, help=data)
        parser.add_argument("--out", type=Path, required=True, help="folder of the model; must be new or empty")
        for option, default, text in more:
            kind = Path if default is None else type(default)
            parser.add_argument(option, default=default, type=kind, required=default is None, help=text)
        parser.add_argument("--epochs", type=int, default=epochs, help=f"passes over the train part, else {epochs}")
        parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
        options = parser.parse_args(arguments)
        try:
            if options.epochs < 1:
                raise DataError(f"--epochs: expected 1 or more, got {options.epochs}")
            if options.out.exists() and not (options.out.is_dir() and not any(options.out.iterdir())):
                raise RunError(f"{options.out} is there; expected a new or empty folder. Name another with --out")
            with torch.random.fork_rng():
                torch.manual_seed(options.seed)
                say(f"{options.out}{work(options)}")
        except QuantDriftError as error:
            complain(str(error))
            sys.exit(2)
        except KeyboardInterrupt:
            what = f"{options.out} is not complete" if options.out.exists() else "nothing was written"
            complain(f"stopped; {what}")
            sys.exit(130)

    return main


def descend(
    model: torch.nn.Module,
    batches: Iterable[Batch],
    loss_of: Callable[[Batch], torch.Tensor],
    *,
    steps: int,
    rate: float,
    decay: float,
    clip: float | None = None,
    anneal: Literal["cos", "linear"] = "cos",
    what: str = "training",
) -> None:
    """Fit a model to batches by AdamW with a warm-up over the first tenth of the steps; gradients are clipped."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=rate, total_steps=steps, pct_start=0.1, anneal_strategy=anneal
    )
    with Terminal().stage(what, steps) as tell:
        for batch in batches:
            optimizer.zero_grad()
            loss_of(batch).backward()  # type: ignore[no-untyped-call]  # untyped in torch
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(weights, clip)
            optimizer.step()
            schedule.step()
            tell(1)


def images_of(place: Path) -> tuple[Labelled, Labelled]:
    """Read the train and the test part of labelled images; raises DataError where there is no train part."""
    data = read_classification_folder(place)
    if data.train is None or data.kind != "image":
        raise DataError(f"{place} has no train images; expected x_train and y_train, or train/CLASS/")
    return data.train, data.test
