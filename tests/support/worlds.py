"""A pair of one linear layer whose inputs are vectors, and a record of what went through it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.asking.run import measure
from quantdrift.base.progress import Silent
from quantdrift.builtin.rtn.work import quantize_rtn
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.measuring.flow import Flow, Measured, Reading
from quantdrift.models.inputs import Inputs, Settings
from quantdrift.models.store import EmbeddingStore
from quantdrift.spec.grammar import parse_scheme

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]


@dataclass
class Rower:
    """An encoder of rows: items are their numbers, and a function of role, rows and batch size encodes them."""

    run: Callable[[str, Rows, int], Vectors]

    def encode(self, items: Sequence[Any], role: str, batch_size: int) -> Vectors:
        return self.run(role, np.array(list(items), dtype=np.int64), batch_size)

    def key(self, role: str) -> Mapping[str, Any] | None:
        return {}


def rows_of(role: str, n: int, *, digest: Any = None, lengths: Any = None) -> Inputs:
    """Inputs that a `Rower` encodes; they have no digest unless one is given, and so are not kept."""
    return Inputs(
        role=role, ids=[f"{role[0]}{number}" for number in range(n)], items=range(n), digest=digest, lengths=lengths
    )


class World:
    """A linear layer as a model; `calls` holds arm, role, rows and batch size of every call of it."""

    def __init__(self, scheme: str, texts: Mapping[str, Tensor], *, width: int = 4, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.texts = dict(texts)
        n_in = next(iter(self.texts.values())).shape[1]
        self.layer = nn.Linear(n_in, width, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(width, n_in, generator=generator))
        self.full = self.layer.weight.detach().clone()
        self.encoder = Rower(self.run)
        self.pair = QuantizedPair([self.layer], parse_scheme(scheme), encoder=self.encoder)
        self.fingerprint = "of the texts"
        self.calls: list[tuple[str, str, list[int], int]] = []
        self.after: Callable[[str, str, Vectors], None] = lambda *_: None

    def run(self, role: str, rows: Rows, batch_size: int) -> Vectors:
        arm = "reference" if torch.equal(self.layer.weight, self.full) else "candidate"
        self.calls.append((arm, role, rows.tolist(), batch_size))
        vectors = self.layer(self.texts[role][rows]).detach().numpy().copy()
        self.after(arm, role, vectors)
        return np.asarray(vectors)

    def inputs(self, role: str) -> Inputs:
        return rows_of(role, len(self.texts[role]), digest={"texts": self.fingerprint})

    def flow(self, store: Path | None = None, **settings: Any) -> Flow:
        settings = {"k": 5, "batch_size": 4, **settings}
        return Flow(pair=self.pair, settings=Settings(**settings), store=EmbeddingStore(store), progress=Silent())

    def measure(self, *readings: Reading, store: Path | None = None, **settings: Any) -> list[Measured]:
        flow = self.flow(store, **settings)
        kept = {"settings": flow.settings, "store": flow.store, "progress": flow.progress}
        return [measure(self.pair, reading, **kept) for reading in readings]

    def encoded(self, arm: str, role: str) -> int:
        """The number of inputs that went through, those included that are tried out."""
        return sum(len(rows) for a, r, rows, _ in self.calls if (a, r) == (arm, role))

    def arms(self, role: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Encode a role's texts by either arm, computed the plain way; the scheme is of 2 bits."""
        low = quantize_rtn(self.full, bits=2, group_size=128).dequantize(torch.float32)
        texts = self.texts[role].double()
        return (texts @ self.full.double().T).numpy(), (texts @ low.double().T).numpy()
