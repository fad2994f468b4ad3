"""Calibration: moments and grids by hand, what is drawn, and passes that wait for each other."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.base.errors import DataError
from quantdrift.builtin.rtn.work import RoundToNearest
from quantdrift.candidate.calibration.in_order import ForwardPass, LayerCandidate, in_lockstep, quantize_in_order
from quantdrift.candidate.calibration.inputs import add_gram, fake_quantize, moments_of, output_error
from quantdrift.candidate.calibration.sample import Sample, draw_sample, read_texts
from quantdrift.models.layers import find_linears
from quantdrift.spec.grammar import parse_scheme
from support.quantizer_samples import Watching
from support.worlds import Rower, rows_of


@pytest.mark.parametrize(
    "inputs",
    [
        [(torch.tensor([[[1.0, -2], [3, 0]]]), None)],
        [(torch.tensor([1.0, -2]), None), (torch.tensor([[3.0, 0]]), None)],
        [(torch.tensor([[[1.0, -2], [9, 9]], [[3, 0], [9, 9]]]), torch.tensor([[True, False], [True, False]]))],
    ],
)
def test_moments_by_hand(inputs: list[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
    """Two tokens, (1, -2) and (3, 0): second moments (1 + 9) / 2, -2 / 2, 4 / 2. Padding does not count."""
    moments = moments_of(inputs, 2, second=True)
    assert (moments.second.tolist(), moments.mean_abs.tolist()) == ([[5, -1], [-1, 2]], [2, 1])
    assert (moments.absmax, moments.n_tokens) == (3, 2)


@pytest.mark.parametrize("n", [1, 383, 384, 385, 800])
def test_half_of_the_products_is_mirrored(n: int) -> None:
    rows = torch.randn(20, n, generator=torch.Generator().manual_seed(n))
    product = torch.zeros(n, n)
    for part in rows.split(12):
        add_gram(product, part)
    assert torch.equal(product, product.T)
    assert torch.allclose(product.double(), rows.double().T @ rows.double(), atol=1e-4)


def test_the_output_error_is_that_of_the_outputs() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(50, 6, generator=rng)
    weight, low = (torch.randn(4, 6, generator=rng) for _ in range(2))
    second = moments_of([(x, None)], 6, second=True).second
    wanted = (x @ (weight - low).T).square().sum() / (x @ weight.T).square().sum()
    assert output_error(weight, low, second) == pytest.approx(float(wanted), rel=1e-5)
    assert output_error(weight, weight, second) == 0
    assert output_error(torch.zeros(4, 6), low, second) is None


def test_the_grid_of_activations_by_hand() -> None:
    """127 levels up to 12.7: steps of 0.1, halves to even, and what is beyond is clipped."""
    x = torch.tensor([0.04, 0.26, -0.26, 12.7, 13.0, -99.0])
    rounded = fake_quantize(x, absmax=12.7, bits=8)
    assert rounded.tolist() == pytest.approx([0, 0.3, -0.3, 12.7, 12.7, -12.7])
    assert fake_quantize(torch.ones(3), absmax=0.0, bits=8).tolist() == [0, 0, 0]
    assert fake_quantize(x.half(), absmax=12.7, bits=4).dtype == torch.float16


def test_every_token_has_a_grid_of_its_own_by_hand() -> None:
    """7 levels up to 0.7 and up to 70: steps of 0.1 and 10; a token of zeros stays one."""
    x = torch.tensor([[[0.7, 0.26, -0.04], [70, -26, 4], [0, 0, 0]]])
    rounded = fake_quantize(x, absmax=None, bits=4)
    assert rounded.flatten().tolist() == pytest.approx([0.7, 0.3, 0, 70, -30, 0, 0, 0, 0])
    assert fake_quantize(x.bfloat16(), absmax=None, bits=8).dtype == torch.bfloat16
    assert fake_quantize(x[:, :0], absmax=None, bits=8).shape == (1, 0, 3)  # an expert without tokens
    endless = fake_quantize(torch.tensor([[1.0, float("inf")], [1.0, 0.5]]), absmax=None, bits=8)
    assert endless.isfinite().tolist() == [[False, False], [True, True]]


@pytest.mark.slow
def test_tokens_are_rounded_as_torchao_rounds_them() -> None:
    utils = pytest.importorskip("torchao.quantization.utils")
    x = torch.randn(4, 50, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 50)[:, None]
    codes, scale = utils._quantize_activation_per_token_absmax(x)
    wanted = codes.float() * scale.reshape(4, 50, 1)
    torch.testing.assert_close(fake_quantize(x, absmax=None, bits=8), wanted, rtol=1e-6, atol=0)


# --- what is calibrated on ---------------------------------------------------------------------------


def drawn(
    scheme: str, n: int = 1000, *, batch_size: int = 32, digest: Any = "a", groups: NDArray[np.int64] | None = None
) -> tuple[Sample, list[list[int]]]:
    """A sample of documents of 1 to n letters, and the rows of each batch."""
    seen: list[list[int]] = []

    def run(role: str, rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        seen.append(rows.tolist())
        return np.zeros((len(rows), 2), dtype=np.float32)

    documents = rows_of("document", n, digest=digest and {"texts": digest}, lengths=np.arange(1, n + 1))
    sample = draw_sample(Rower(run), [documents], parse_scheme(scheme), batch_size, groups=groups)
    for batch in sample.batches:
        batch()
    return sample, seen


def test_512_documents_by_default_each_once_longest_first() -> None:
    sample, seen = drawn("W4-gptq")
    rows = [row for batch in seen for row in batch]
    assert len(rows) == len(set(rows)) == 512
    assert [len(batch) for batch in seen] == [32] * 16
    assert rows == sorted(rows, reverse=True)  # the length grows with the number
    facts = {"source": "corpus", "n_inputs": 512, "wanted": 512, "of": 1000, "seed": 0}
    assert facts.items() <= sample.record.items()


def test_the_number_and_the_seed_are_settings() -> None:
    (first, seen), (again, seen_again) = drawn("W4-gptq+calib=20"), drawn("W4-awq+calib=20")
    other, seen_other = drawn("W4-gptq+calib=20+seed=1")
    assert sum(len(batch) for batch in seen) == 20
    assert (seen, first.record["digest"]) == (seen_again, again.record["digest"])  # the same for every method
    assert seen != seen_other
    assert first.record["digest"] != other.record["digest"]
    assert first.key != other.key


def test_batches_are_larger_where_there_would_be_too_many_and_hold_one_group() -> None:
    assert len(drawn("W4-gptq", batch_size=1)[0].batches) == 64
    _, seen = drawn("W4-gptq", 40, batch_size=8, groups=np.arange(40) // 15)
    assert all(len({row // 15 for row in batch}) == 1 for batch in seen)
    assert sorted(row for batch in seen for row in batch) == list(range(40))


def test_lines_of_text_and_lines_of_json(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one text\n\n  another  \n")
    assert read_texts(tmp_path / "a.txt") == ["one text", "another"]
    rows = ['{"_id": "1", "title": "A title", "text": "and a text"}', "", '{"text": "alone"}']
    (tmp_path / "b.jsonl").write_text("\n".join(rows))
    assert read_texts(tmp_path / "b.jsonl") == ["A title and a text", "alone"]


@pytest.mark.parametrize(
    ("name", "content", "fact"),
    [
        ("a.csv", "x", r"a\.csv: expected a file of texts, a \.txt file"),
        ("missing.txt", None, r"missing\.txt: expected a file of texts"),
        ("empty.txt", "\n \n", "holds no text"),
        ("a.jsonl", '{"text": "fine"}\n["no"]', r"a\.jsonl, line 2"),
        ("b.jsonl", '{"title": "no text"}', r"b\.jsonl, line 1"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, name: str, content: str | None, fact: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=fact):
        read_texts(tmp_path / name)


# --- passes that wait for each other -----------------------------------------------------------------


def wait(place: int, value: float = 0.0) -> None:
    current = threading.current_thread()
    assert isinstance(current, ForwardPass)
    current.wait_at(place, (torch.tensor(value), None))


def test_those_at_the_lowest_place_go_on_one_after_another() -> None:
    said: list[str] = []

    def work(name: str, *places: int) -> None:
        for place in places:
            said.append(f"{name}{place}")
            wait(place, ord(name))
        said.append(f"{name} ends")

    def make(place: int, here: list[ForwardPass]) -> None:
        said.append(f"make {place} of {''.join(chr(int(waiting.value[0])) for waiting in here if waiting.value)}")

    in_lockstep([lambda: work("a", 0, 2), lambda: work("b", 0, 1), lambda: work("c", 2)], make)
    assert said == [
        *("a0", "b0", "c2", "make 0 of ab", "a2", "b1"),
        *("make 1 of b", "b ends", "make 2 of ac", "a ends", "c ends"),
    ]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_comes_out_and_the_others_are_ended(error: type[BaseException]) -> None:
    before, ended = threading.active_count(), []

    def waits() -> None:
        try:
            wait(0)
        except Exception:  # what code on the way may hold
            pytest.fail("an abandoned pass is not to be caught")
        finally:
            ended.append("waits")

    def fails() -> None:
        raise error("no such token")

    with pytest.raises(error, match="no such token"):
        in_lockstep([waits, fails, waits], lambda *_: None)
    assert ended == ["waits"]  # the third has not begun
    assert threading.active_count() == before


def calibrate(model: nn.Module, *works: Callable[[], object]) -> tuple[Watching, dict[str, LayerCandidate]]:
    """The method, with the moments in calling order, and what became of every layer."""
    method, layers, made = Watching(bits=8, group_size=None), find_linears([model]), dict[str, LayerCandidate]()
    quantize_in_order(
        [model],
        layers,
        works,
        quantizers=[method] * len(layers),
        fallbacks=[RoundToNearest(bits=8, group_size=None)] * len(layers),
        kept={},
        done=lambda _, layer: made.__setitem__(layer.name, layer),
    )
    return method, made


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        output: Tensor = self.layer(x)
        return output


class Towers(nn.Module):
    """A tower that is given a mask, and one that is not but has inputs of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = Tower(), Tower()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.text(x, attention_mask=mask) + self.image(x)  # type: ignore[no-any-return]


def test_a_mask_counts_for_the_module_that_is_given_it() -> None:
    model, mask = Towers(), torch.tensor([[1, 1, 0], [1, 0, 0]])
    method, _ = calibrate(model, lambda: model(torch.randn(2, 3, 2), mask))
    assert [moments.n_tokens for moments in method.seen] == [3, 6]
