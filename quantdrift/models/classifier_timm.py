"""Image classifiers of timm, from the hub or a folder in its layout."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quantdrift.errors import MissingExtraError, UnsupportedError
from quantdrift.models.classifier import Classifier
from quantdrift.models.classifier_images import as_pictures
from quantdrift.models.quiet import quiet_loading
from quantdrift.models.resolve import ModelSource
from quantdrift.models.vetting import loading

__all__ = ["load_timm"]

_CHANNELS = 3


def load_timm(
    source: ModelSource, *, device: torch.device, revision: str | None = None
) -> Classifier:
    """Load an image classifier with the preprocessing that it was evaluated with.

    Args:
        source: a hub id, or a folder as `timm.models.save_for_hf` writes it.
        device: where it runs.
        revision: of a hub model.

    Raises:
        MissingExtraError: timm is not installed, or what it needs cannot be imported.
        UnsupportedError: the model cannot be loaded, has fewer than two classes, or takes something
            else than RGB images.
    """
    quiet_loading("timm")
    try:
        import timm  # noqa: PLC0415 -- an optional package, and slow to import
        import timm.data  # noqa: PLC0415 -- as above
    except (ImportError, OSError, RuntimeError) as error:  # torchvision's wheel may not fit torch's
        raise MissingExtraError("timm", "timm", needed_for=f"the model {source.name!r}") from error
    with loading(source, "classifier", revision=revision):
        module: Any = timm.create_model(_timm_name(source, revision), pretrained=True)
    said = dict(module.pretrained_cfg)
    n_classes = int(module.num_classes)
    if n_classes < 2:  # noqa: PLR2004 -- one class is no choice
        raise UnsupportedError(
            f"{source.name!r} ({source.canonical}) has {n_classes} classes, so there is nothing to "
            "rank; expected two or more"
        )
    settings = timm.data.resolve_data_config({}, model=module)
    if settings["input_size"][0] != _CHANNELS:
        raise UnsupportedError(
            f"{source.name!r} ({source.canonical}) takes images of {settings['input_size'][0]} "
            f"channels; expected {_CHANNELS} (RGB)"
        )
    transform = timm.data.create_transform(**settings, is_training=False)
    names = said.get("label_names") or ()
    if isinstance(names, Mapping):
        names = list(names.values())
    if len(names) != n_classes:
        names = range(n_classes)
    return Classifier(
        module=module.eval().to(device),
        source=source,
        takes="image",
        classes=tuple(map(str, names)),
        prepare=_Transformed(transform=transform),
        description="\n".join(
            [
                json.dumps([settings, said], sort_keys=True, default=str),
                repr(transform),
                repr(module),  # the same weights with another activation give other logits
                _config(source),  # and with another number of heads, which only it tells
                timm.__version__,
            ]
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Transformed:
    """Images to one tensor."""

    transform: Any

    def __call__(self, images: Sequence[Any]) -> Tensor:
        return torch.stack([self.transform(picture) for picture in as_pictures(images)])


def _config(source: ModelSource) -> str:
    """The settings of a local folder as they stand there; of a hub model, its name."""
    file = Path(source.location) / "config.json"
    return file.read_text(encoding="utf-8") if source.kind != "hub" else source.location


def _timm_name(source: ModelSource, revision: str | None) -> str:
    if source.kind != "hub":
        return f"local-dir:{source.location}"
    return f"hf-hub:{source.location}" + ("" if revision is None else f"@{revision}")
