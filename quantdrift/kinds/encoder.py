"""The kinds of models, each a module of quantdrift or an entry point of another package."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quantdrift.base.registry import Package, Registry, imported

Use = Literal["search", "classes", "shortlist"]
"""What a model can be measured on: a search by its embeddings, labelled inputs, or lists that it reranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderKind:
    """A kind of models, described without torch.

    Attributes:
        what: description of such a model and of the data that it takes.
        uses: the things that it can be measured on.
        load: "module:function" of (source, device, revision, dtype) that loads a `models.model.LoadedModel`; a model
            that searches is a `models.model.EmbeddingModel`.
        accepts: "module:function" of (source, revision) that says whether a model is of this kind; empty accepts all.
        in_memory: the classes of models in memory that are of this kind, each with the "module:function" of
            (model, source) that wraps one in a `builtin.sentence.work.SentenceEncoder`.
        files: file names of which any one makes a folder a model of this kind.
        packages: the packages that load it, beside torch, transformers and sentence-transformers.
        can_save: whether `quantdrift quantize` writes its candidates, in the format of sentence-transformers.
        place: its position in the order in which kinds are tried; lower comes first.
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
"""All kinds by name, in the order in which they are tried."""


def brought_for(source: Any) -> dict[str, str]:
    """Versions of the other packages whose kinds accept a model."""
    return KINDS.versions(*(kind for kind in KINDS.values() if KINDS.versions(kind) and kind.is_of(source)))


USUAL: Mapping[Use, str] = {"search": "sentence", "classes": "classifier", "shortlist": "cross-encoder"}
"""The default kind for each use."""
