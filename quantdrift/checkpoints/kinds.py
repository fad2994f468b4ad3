"""The kind of a model, before it is loaded."""

from quantdrift.base.errors import UnsupportedError
from quantdrift.checkpoints.classifier_config import refuse_language_model
from quantdrift.checkpoints.named import ModelSource
from quantdrift.encoders import KINDS, USUAL, EncoderKind, Use


def kind_of(source: ModelSource, use: Use, revision: str | None = None) -> EncoderKind:
    """The kind of a model for a use; where a hub does not answer the usual one, whose loading says so.

    Raises:
        UnsupportedError: a model of its kind is not for this use.
    """
    usual = KINDS[USUAL[use]]
    try:
        actual = next((kind for kind in KINDS.values() if use in kind.uses and kind.is_of(source, revision)), None)
        if actual is None:
            actual = next((kind for kind in KINDS.values() if kind.is_of(source, revision)), usual)
    except UnsupportedError:
        if use == "classes":
            raise
        return usual
    return actual if use in actual.uses else _wanted(source, actual, usual, revision)


def check_kind(source: ModelSource, name: str, revision: str | None = None) -> None:
    """Refuse a model of another kind than that of a name."""
    actual = next((kind for kind in KINDS.values() if kind.is_of(source, revision)), KINDS[name])
    _wanted(source, actual, KINDS[name], revision)


def check_saved(source: ModelSource, revision: str | None = None) -> None:
    """Refuse a model whose candidates `quantdrift quantize` does not write."""
    if not (kind := kind_of(source, "search", revision)).saved:
        raise UnsupportedError(
            f"{source.name} is {kind.what}; quantize writes models of sentence-transformers, in their own format"
        )


def _wanted(source: ModelSource, kind: EncoderKind, wanted: EncoderKind, revision: str | None) -> EncoderKind:
    if kind is not wanted:
        refuse_language_model(source, revision)
        raise UnsupportedError(f"{source.name} is {kind.what}; these data take {wanted.what}")
    return kind
