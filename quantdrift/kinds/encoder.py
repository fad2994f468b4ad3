"""The kinds of models: one kind a module, or an entry point of another package."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quantdrift.base.registry import Package, Registry, imported

Use = Literal["search", "classes", "shortlist"]
"""What a model is measured on: a search by its embeddings, labelled inputs, or lists that it reranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderKind:
    """A kind of models, told without torch.

    Attributes:
        what: in words, with the data that it takes.
        uses: what it is measured on.
        load: "module:function" that loads one, of (source, device, revision, dtype): an
            `models.model.LoadedModel`; one that searches is an `models.model.EmbeddingModel`.
        accepts: "module:function" that says of (source, revision) whether a model is of this kind; all are if empty.
        in_memory: classes of models in memory that are of this kind, each with a "module:function" of (model, source)
            that makes an `builtin.sentence.work.SentenceEncoder` of one.
        files: names of files of which one makes a folder a model of this kind.
        packages: that load it, beside torch, transformers and sentence-transformers.
        saved: whether `quantdrift quantize` writes its candidates, which are sentence-transformers' own then.
        place: in the order in which kinds are asked, ascending.
    """

    what: str
    uses: tuple[Use, ...]
    load: str
    accepts: str = ""
    in_memory: Mapping[str, str] = field(default_factory=dict, hash=False)
    files: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    saved: bool = False
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
