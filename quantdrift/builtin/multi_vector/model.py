"""Late-interaction models of sentence-transformers: a vector for every token."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import torch

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.multi_vector.scoring import MaxSim, Product
from quantdrift.builtin.multi_vector.search import RowSearch, row_search
from quantdrift.builtin.sentence.work import SentenceEncoder, load_sentence_transformer
from quantdrift.measuring.readings import Search
from quantdrift.models.files.kinds import has_modules
from quantdrift.models.files.named import ModelSource
from quantdrift.models.loading import Placed
from quantdrift.models.vetting import refuse_other_kinds
from quantdrift.scoring.ragged import Matrix, Ragged
from quantdrift.scoring.similarity import Similarity


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowEncoder(SentenceEncoder):
    """A model whose output is several rows an input."""

    one_vector = False

    def product(self) -> Product:
        """Return how rows become scores."""
        raise NotImplementedError

    def rows(self, items: list[Any], role: str, batch_size: int) -> list[Any]:
        """Return the rows float32 [n_rows, width] of each input."""
        raise NotImplementedError

    def encode(self, items: Sequence[Any], role: str, batch_size: int) -> Any:
        """Embed texts, or images uint8 [height, width, 3], in their role, as `Ragged`."""
        parts = self.parts(items, batch_size)
        return Ragged.of([rows for part in parts for rows in self.rows(part, role, batch_size)])

    def reading(self, search: Search) -> RowSearch:
        """Return the search by rows."""
        return row_search(search, self.product())

    def settings(self, role: str) -> str:
        """Return prompt, length limit, the modules after the transformer with their settings, and the product."""
        parts: list[Any] = [getattr(module, "get_config_dict", dict)() for module in list(self.model.children())]
        most = getattr(self.model, "max_active_dims", None)
        return "\n".join([SentenceEncoder.settings(self, role), repr(parts), repr(self.product()), repr(most)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MultiVectorModel(RowEncoder):
    """A MultiVectorEncoder, which does prompts, query expansion, masks and projection itself."""

    def product(self) -> MaxSim:
        """Return MaxSim, or its mean over a query's token vectors."""
        return MaxSim(mean=self.model.similarity_fn_name == "meanmaxsim")

    def limit(self) -> None:
        """Return None: queries and documents have limits of their own, and queries are filled up."""

    def rows(self, items: list[Any], role: str, batch_size: int) -> list[Any]:
        """Return the token vectors of each input that the mask keeps."""
        encode = self.model.encode_query if role == "query" else self.model.encode_document
        return token_vectors(encode(items, batch_size=batch_size, show_progress_bar=False))


def token_vectors(encoded: Iterable[Any]) -> list[Matrix]:
    """Return the tensors or arrays of a MultiVectorEncoder as float32 [n_tokens, dim] each."""
    return [torch.as_tensor(matrix).float().cpu().numpy() for matrix in encoded]


def load_multi_vector(source: ModelSource, **where: Unpack[Placed]) -> MultiVectorModel:
    """Load a late-interaction model."""
    if not has_modules(source, where.get("revision")):
        raise UnsupportedError(
            f"{source.name} has no modules.json: sentence-transformers would draw its projection at random; expected "
            "a folder that MultiVectorEncoder.save_pretrained or PyLate wrote"
        )
    model, notes = load_sentence_transformer(source, kind="MultiVectorEncoder", **where)
    return multi_vector_of(model, source, notes=notes)


def multi_vector_of(model: Any, source: ModelSource, *, notes: Sequence[str] = ()) -> MultiVectorModel:
    """Make a model of a loaded MultiVectorEncoder and its notes."""
    refuse_other_kinds(getattr(model, "model_type", None), source.name, "MultiVectorEncoder")
    return MultiVectorModel(model=model, source=source, similarity=Similarity.DOT, notes=tuple(notes))
