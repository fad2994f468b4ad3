"""Rounds the token embedding matrices of a model (`+table=`) to nearest, with one scale for each row."""

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
"""Rows rounded at a time, as the matrix of a large vocabulary is the model's largest."""


class Table(ModelStage):
    """The token embedding matrices of a candidate."""

    def __init__(self, scheme: Scheme, pair: StagedModel) -> None:
        super().__init__(scheme, pair)
        self.width = int(scheme.option("table", ""))
        self.tables = find_tables(pair.modules, pair.name)
        self.reaches = tied_to(self.tables, pair.modules)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Round the matrices."""
        with saved_weights(self.tables):
            round_tables(self.tables, self.width)
            yield

    def key(self) -> None:
        """Return None: the weights hold all of it."""

    def record(self) -> Mapping[str, Any]:
        """Return bits, shapes, and modules that share a matrix, such as a language model's head."""
        tables = {table.name: list(table.weight.shape) for table in self.tables}
        record = {"bits": self.width, "scale": "row", "tables": tables, "tied": list(self.reaches)}
        return {STAGE.record_key: record}

    def bits(self) -> list[StoredBits]:
        """Return the bits of every embedding matrix, with one scale for each row."""
        sizes = [(table.parameter, table.weight.numel(), len(table.weight)) for table in self.tables]
        return [
            StoredBits(parameter=parameter, bits=numbers * self.width + rows * SCALE_BITS)
            for parameter, numbers, rows in sizes
        ]


def find_tables(modules: Sequence[nn.Module], name: str) -> list[LinearLayer]:
    """Return the matrices [n_tokens, dim] of `get_input_embeddings()` of the model's parts, shared ones once.

    Matrices of positions and token types are not included.

    Raises:
        UnsupportedError: there is none, or one has no floating-point weights in memory.
    """
    paths = {module: path for path, module in named_modules(modules)}
    tables: dict[object, LinearLayer] = {}
    for part in list(paths):
        with suppress(NotImplementedError, AttributeError):
            # a static model is an embedding bag; all others are of transformers
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
    """Return the paths of modules that share such a matrix, as a language model's head, and are rounded with it."""
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
