"""Classifiers of texts and images, of transformers and timm."""

from quantdrift.base.registry import Package
from quantdrift.kinds.encoder import EncoderKind

KIND = EncoderKind(
    what="a classifier, which takes classification data (a folder with test.jsonl, or images)",
    uses=("classes",),
    load="quantdrift.builtin.classifier.work:load_classifier",
    accepts="quantdrift.models.files.kinds:classifier_kind",
    packages=(Package(name="timm", module="timm", extra="timm", note="classifiers of images"),),
    place=70,
)
