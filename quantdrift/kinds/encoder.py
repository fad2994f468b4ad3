"""The kinds of models: one kind a module, or an entry point of another package."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quantdrift.base.registry import Package, Registry, imported

Use = Literal["search", "classes", "shortlist"]
"""What a model is measured on: a search by its embeddings, labelled inputs, or lists that it reranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderKind:
    """What is known of a kind of models without torch.

    Attributes:
        what: what such a model is, and which data it takes.
        uses: what it can be measured on.
        load: "module:function" of (source, device, revision, dtype) that loads a `models.model.LoadedModel`; a model
            that searches is a `models.model.EmbeddingModel`.
        accepts: "module:function" of (source, revision) that says whether a model is of this kind; empty accepts all.
        in_memory: the classes of models in memory that are of this kind, each with the "module:function" of
            (model, source) that wraps one in a `builtin.sentence.work.SentenceEncoder`.
        files: file names of which any one makes a folder a model of this kind.
        packages: the packages that load it, beside torch, transformers and sentence-transformers.
        can_save: whether `quantdrift quantize` writes its candidates, in the format of sentence-transformers.
        place: its position in the order in which kinds are asked; lower comes first.
    """

    what: str
    uses: tuple[Use, ...]
    load: str
    accepts: str = ""
    in_memory: Mapping[str, str] = field(default_factory=dict, hash=False)
    files: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    can_save: bool = False
    place: int = 50

    def is_of(self, source: Any, revision: str | None = None) -> bool:
        """Whether a model is of this kind, from its files alone."""
        return not self.accepts or bool(imported(self.accepts)(source, revision))


KINDS: Registry[EncoderKind] = Registry(
    "quantdrift.encoders", package="quantdrift.builtin", attribute="KIND", kind=EncoderKind
)
"""All kinds by name, in the order in which they are asked."""


def brought_for(source: Any) -> dict[str, str]:
    """Versions of the other packages whose kinds take a model."""
    return KINDS.versions(*(kind for kind in KINDS.values() if KINDS.versions(kind) and kind.is_of(source)))


USUAL: Mapping[Use, str] = {"search": "sentence", "classes": "classifier", "shortlist": "cross-encoder"}
"""The kind that is meant where nothing tells of another."""
