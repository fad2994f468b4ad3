"""One pass against one by one on a GPU: the shape of Qwen3-Embedding-0.6B, random weights."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from timing import report
from torch import Tensor, nn

from quantdrift.engine.layers import find_linears
from quantdrift.engine.sensitivity.gaps import contributions, exact_shifts, median_shifts
from quantdrift.engine.sensitivity.problem import GapProblem, Setting
from quantdrift.progress import Silent

N_QUERIES, N_BATCH, QUERY_TOKENS, DOCUMENT_TOKENS = 128, 16, 16, 128
MIB = 2**20


class LastToken(nn.Module):
    """An encoder of decoder blocks that pools the last token, as Qwen3-Embedding does."""

    def __init__(self, n_blocks: int) -> None:
        from transformers import Qwen3Config, Qwen3Model  # noqa: PLC0415 -- takes long to import

        super().__init__()
        self.model = Qwen3Model(
            Qwen3Config(
                vocab_size=4096,  # the embedding has no part in what is measured
                hidden_size=1024,
                intermediate_size=3072,
                num_hidden_layers=n_blocks,
                num_attention_heads=16,
                num_key_value_heads=8,
                head_dim=128,
            )
        )

    def forward(self, tokens: Tensor) -> Tensor:
        state = self.model(input_ids=tokens, use_cache=False).last_hidden_state[:, -1]
        normalized: Tensor = nn.functional.normalize(state, dim=-1)
        return normalized


def setting_of(model: LastToken, device: torch.device, n_queries: int) -> Setting:
    """Every query with two documents of its own."""
    generator = torch.Generator().manual_seed(0)
    lengths = (QUERY_TOKENS, DOCUMENT_TOKENS, DOCUMENT_TOKENS)
    tokens = [torch.randint(0, 4096, (n_queries, length), generator=generator).to(device) for length in lengths]

    def encode(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        with torch.no_grad():
            found = model(tokens[rows[0] // n_queries][torch.from_numpy(rows % n_queries)])
        return np.asarray(found.float().cpu().numpy())

    rows = np.arange(n_queries)[:, None] + n_queries * np.arange(3)
    return Setting(
        modules=[model],
        layers=find_linears([model]),
        widths=(3, 4),
        group_size=128,
        seed=0,
        progress=Silent(),
        problem=GapProblem(
            encode=encode,
            batches=np.split(np.arange(3 * n_queries), range(N_BATCH, 3 * n_queries, N_BATCH)),
            rows=rows[:, None],
            valid=np.ones((n_queries, 1), dtype=np.bool_),
            gap=lambda x: (x[..., 0, :] * (x[..., 1, :] - x[..., 2, :])).sum(-1),
        ),
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("n_blocks", [28])
def test_one_pass_on_a_gpu(n_blocks: int, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = LastToken(n_blocks).to(device, torch.bfloat16).eval()
    setting = setting_of(model, device, N_QUERIES)
    assert len(setting.layers) == 7 * n_blocks
    assert setting.problem is not None
    exact_shifts(setting_of(model, device, N_BATCH))  # does not count
    torch.cuda.synchronize()
    start = time.perf_counter()
    exact = exact_shifts(setting)
    torch.cuda.synchronize()
    naive = time.perf_counter() - start
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    shifts = contributions(setting)
    torch.cuda.synchronize()
    once = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated()
    medians = median_shifts(exact, setting.problem)[:, 0]
    ranks = [np.argsort(np.argsort(x)) for x in (medians, np.median(abs(shifts[:, 0, :, 0]), 0))]
    with capsys.disabled():
        shape = f"{N_QUERIES} queries, {len(setting.layers)} layers at 3 bits"
        report("whole runs / one pass", [naive / once], shape)
        print(f"Spearman: {np.corrcoef(ranks)[0, 1]:.3f}")
        print(f"peak {peak / MIB:,.0f} MiB, of which {before / MIB:,.0f} MiB are the model")
