"""The token embedding matrices of a model, and how `+table=` rounds them: to nearest, with one scale for each row."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.rtn.work import quantize_rtn
from quantdrift.builtin.table import STAGE
from quantdrift.candidate.stages import ModelStage, StagedModel
from quantdrift.models.bits import SCALE_BITS, StoredBits
from quantdrift.models.heads import refuse_unfit
from quantdrift.models.layers import LinearLayer, memory_range, named_modules
from quantdrift.models.weights import saved_weights
from quantdrift.scheme import Scheme

_ROWS = 8192
"""Rows that are rounded at a time: the matrix of a large vocabulary is the model's largest matrix."""


class Table(ModelStage):
    """The token embedding matrices of a candidate."""

    def __init__(self, scheme: Scheme, pair: StagedModel) -> None:
        super().__init__(scheme, pair)
        self.width = int(scheme.option("table", ""))
        self.tables = find_tables(pair.modules, pair.name)
        self.reaches = tied_to(self.tables, pair.modules)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the matrices are rounded."""
        with saved_weights(self.tables):
            round_tables(self.tables, self.width)
            yield

    def key(self) -> None:
        """Nothing: what it does is in the weights."""

    def record(self) -> Mapping[str, Any]:
        """Bits, shapes, and what shares a matrix, such as the head of a language model."""
        tables = {table.name: list(table.weight.shape) for table in self.tables}
        record = {"bits": self.width, "scale": "row", "tables": tables, "tied": list(self.reaches)}
        return {STAGE.part: record}

    def bits(self) -> list[StoredBits]:
        """Bits of every embedding matrix, with one scale for each row."""
        sizes = [(table.parameter, table.weight.numel(), len(table.weight)) for table in self.tables]
        return [
            StoredBits(parameter=parameter, bits=numbers * self.width + rows * SCALE_BITS)
            for parameter, numbers, rows in sizes
        ]


def find_tables(modules: Sequence[nn.Module], name: str) -> list[LinearLayer]:
    """The tables [n_tokens, dim] that `get_input_embeddings()` of the model's parts gives, shared ones once.

    Tables of positions and token types are none.

    Raises:
        UnsupportedError: there is none, or one has no floating-point weights in memory.
    """
    paths = {module: path for path, module in named_modules(modules)}
    tables: dict[object, LinearLayer] = {}
    for part in list(paths):
        with suppress(NotImplementedError, AttributeError):
            # an embedding bag is the whole of a static model; the rest is of transformers
            table = part if isinstance(part, nn.EmbeddingBag) else part.get_input_embeddings()  # type: ignore[operator]
            if isinstance(table, nn.Embedding | nn.EmbeddingBag) and isinstance(weight := table.weight, nn.Parameter):
                place = memory_range(weight) or id(weight)
                tables.setdefault(place, LinearLayer(name=paths[table], parameter=weight))
    if not tables:
        raise UnsupportedError(
            f"+table= rounds the token embedding matrix, and {name} has none that is known: get_input_embeddings() of "
            "no part of it gives an nn.Embedding, as that of a text model of transformers does; leave +table= out"
        )
    refuse_unfit(list(tables.values()), name)
    return list(tables.values())


def tied_to(tables: Sequence[LinearLayer], modules: Sequence[nn.Module]) -> list[str]:
    """Paths of the modules that multiply by such a matrix, as a language model's head: what rounds it rounds them."""
    places = {memory_range(table.parameter) for table in tables} - {None}
    return [
        path
        for path, module in named_modules(modules)
        if not isinstance(module, nn.Embedding)
        and any(memory_range(parameter) in places for parameter in module.parameters(recurse=False))
    ]


@torch.no_grad()
def round_tables(tables: Sequence[LinearLayer], bits: int) -> None:
    """Round them in place on the grid of rtn, max|row| / (2^(bits-1) - 1)."""
    for table in tables:
        for rows in torch.split(table.weight, _ROWS):
            rows.copy_(quantize_rtn(rows, bits=bits, group_size=None).dequantize(rows.dtype))
