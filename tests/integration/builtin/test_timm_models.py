"""Image classifiers of timm, in folders as timm writes them.

timm needs torchvision; where they cannot be imported, these tests are skipped.
"""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quantdrift.asking.opening import before_head
from quantdrift.builtin.classifier.work import load_classifier
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.models.files.kinds import classifier_kind
from quantdrift.models.files.named import resolve
from quantdrift.spec.grammar import parse_scheme
from support.classifier_samples import CPU, close, images


@pytest.fixture(scope="module")
def timm() -> Any:
    """The library, or a reason why these tests cannot run."""
    try:
        return importlib.import_module("timm")
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"timm cannot be imported here: {str(error).splitlines()[0]}")


SIZES = {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3}
HEADS = {"vit_tiny_patch16_224": ("head",), "deit_tiny_distilled_patch16_224": ("head", "head_dist")}


@pytest.mark.parametrize("name", HEADS)
def test_a_model_of_timm_is_loaded_with_its_own_preprocessing(name: str, timm: Any, tmp_path: Path) -> None:
    from PIL import Image  # noqa: PLC0415 -- an optional package

    with torch.random.fork_rng():
        torch.manual_seed(0)
        overlay = {"input_size": (3, 32, 32)}
        model = timm.create_model(name, pretrained=False, num_classes=3, pretrained_cfg_overlay=overlay, **SIZES).eval()
        for parameter in model.parameters():  # some begin with zeros
            nn.init.normal_(parameter, std=0.3)
    timm.models.save_for_hf(model, tmp_path, model_args=SIZES, safe_serialization=True)
    source = resolve(str(tmp_path))
    assert classifier_kind(source)
    classifier = load_classifier(source, device=CPU)
    assert (classifier.takes, len(classifier.classes)) == ("image", 3)
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=model))
    batch = torch.stack([transform(Image.fromarray(array)) for array in images()])
    with torch.no_grad():
        wanted = model(batch)
        pooled = model.forward_head(model.forward_features(batch), pre_logits=True)
    assert close(classifier.encode(images(), "input", 3), wanted)
    assert close(classifier.encode(images(), "input", 1), wanted)
    pair = QuantizedPair([classifier.module], parse_scheme("W3"))
    assert tuple(pair.left_out) == tuple(f"timm_model.{head}" for head in HEADS[name])
    if len(HEADS[name]) == 1:  # what a contrast searches by is timm's own pooled representation
        before, head = before_head("vit", classifier, pair)
        vectors = before.encode(images(), "input", 3)
        assert close(vectors, pooled)
        assert close(head.logits(vectors), wanted)
    with pair.candidate():
        assert not close(classifier.encode(images(), "input", 3), wanted)
