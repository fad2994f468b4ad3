"""A model of the user's own for tests of the beir plugin: no language model, one linear layer."""

from typing import Any

import torch
from torch import nn

CORPUS = {"a": {"title": "", "text": "abba"}, "b": {"title": "x", "text": "bob"}}


class Letters:
    """A model of the user's own: counts of letters through one linear layer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layer = nn.Linear(26, 16, bias=False)
        self.sep = " "

    def _embed(self, texts: list[str]) -> torch.Tensor:
        counts = [[text.count(chr(97 + number)) for number in range(26)] for text in texts]
        with torch.no_grad():
            embedded: torch.Tensor = self.layer(torch.tensor(counts, dtype=torch.float32))
        return embedded

    def encode_queries(self, queries: list[str], batch_size: int = 16, **_: Any) -> torch.Tensor:
        return self._embed(queries)

    def encode_corpus(self, corpus: Any, batch_size: int = 8, **_: Any) -> torch.Tensor:
        return self._embed([f"{document.get('title', '')} {document['text']}" for document in corpus])

    def start_multi_process_pool(self) -> None:
        raise AssertionError("it would start processes")
