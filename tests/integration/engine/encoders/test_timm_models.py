"""Image classifiers of timm, in folders as timm writes them.

timm needs torchvision; where they cannot be imported, these tests are skipped.
"""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quantdrift.checkpoints.classifier_config import is_classifier
from quantdrift.checkpoints.named import resolve
from quantdrift.engine.encoders.classifier import load_classifier
from quantdrift.engine.opening import before_head
from quantdrift.engine.pair import QuantizedPair
from quantdrift.spec.grammar import Spec, parse_scheme
from support.classifier_samples import CPU, close, images


@pytest.fixture(scope="module")
def timm() -> Any:
    """The library, or a reason why these tests cannot run."""
    try:
        return importlib.import_module("timm")
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"timm cannot be imported here: {str(error).splitlines()[0]}")


TIMM_MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "vit_tiny_patch16_224": ({"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3}, ("head",)),
    "deit_tiny_distilled_patch16_224": (
        {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3},
        ("head", "head_dist"),
    ),
}


def timm_folder(timm: Any, folder: Path, name: str, **more: Any) -> Any:
    arguments, _ = TIMM_MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = timm.create_model(
            name, pretrained=False, num_classes=3, pretrained_cfg_overlay={"input_size": (3, 32, 32)}, **arguments
        ).eval()
        for parameter in model.parameters():  # some begin with zeros
            nn.init.normal_(parameter, std=0.3)
    timm.models.save_for_hf(model, folder, model_args=arguments, **more)
    return model


@pytest.mark.parametrize("name", TIMM_MODELS)
def test_a_model_of_timm_is_loaded_with_its_own_preprocessing(name: str, timm: Any, tmp_path: Path) -> None:
    from PIL import Image  # noqa: PLC0415 -- an optional package

    model = timm_folder(timm, tmp_path, name)
    source = resolve(str(tmp_path))
    assert is_classifier(source)
    classifier = load_classifier(source, device=CPU)
    assert (classifier.takes, len(classifier.classes)) == ("image", 3)
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=model))
    batch = torch.stack([transform(Image.fromarray(array)) for array in images()])
    with torch.no_grad():
        wanted = model(batch)
    assert close(classifier.encode(images(), "input", 3), wanted)
    assert close(classifier.encode(images(), "input", 1), wanted)
    pair = QuantizedPair([classifier.module], parse_scheme("W3"))
    assert tuple(pair.left_out) == tuple(f"timm_model.{head}" for head in TIMM_MODELS[name][1])
    with pair.candidate():
        assert not close(classifier.encode(images(), "input", 3), wanted)


def test_what_a_contrast_searches_by_is_timms_own_pooled_representation(timm: Any, tmp_path: Path) -> None:
    timm_folder(timm, tmp_path, "vit_tiny_patch16_224")
    classifier = load_classifier(resolve(str(tmp_path)), device=CPU)
    spec = Spec(model="vit", scheme=parse_scheme("W3"))
    before, head = before_head(spec.model, classifier, QuantizedPair([classifier.module], spec.scheme))
    inner: Any = classifier.module.get_submodule("timm_model")
    with torch.no_grad():
        wanted = inner.forward_head(
            inner.forward_features(classifier.prepare(images())["pixel_values"]), pre_logits=True
        )
    vectors = before.encode(images(), "input", 3)
    assert close(vectors, wanted)
    assert close(head.logits(vectors), classifier.encode(images(), "input", 3))
