"""What a paired evaluation in lm-eval costs, against the two stock evaluations it stands for.

The wanted figure is below 1.05. Both sides load their models, run the same tasks and compute
lm-eval's own metrics and standard errors; ours puts weights aside, quantizes, and computes the
drift. On a model of 260 thousand weights that shows; a larger one, with random weights, is nearer
to what people run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from timing import in_turn, report

pytest.importorskip("lm_eval")

from quantdrift_lm_eval.model import QuantizedPairLM
from support.lm_eval_samples_maker import evaluate, save_model, write_tasks

STORIES = Path(__file__).parents[3] / "shared" / "data" / "models" / "stories260K"
KINDS = ("questions", "last_word", "texts", "sums")
N, ROUNDS, SCHEME = 100, 3, "W4-rtn"


@pytest.fixture(params=["260 thousand weights", "7 million weights"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The name of a model, and where it lies."""
    if not request.param.startswith("260"):
        return request.param, save_model(tmp_path / "model", wide=12, n_layers=4)
    if not STORIES.exists():
        pytest.skip(f"{STORIES} is not here")
    return request.param, str(STORIES)


def test_beside_two_stock_evaluations(
    model: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, reference = model
    candidate = str(tmp_path / "candidate")
    pair = QuantizedPairLM(reference, SCHEME, device="cpu")
    with pair.pair.candidate():
        pair.model.save_pretrained(candidate)
        pair.tokenizer.save_pretrained(candidate)
    tasks = write_tasks(tmp_path / "tasks", reference, N)
    found: list[dict[str, Any]] = []

    def ours() -> None:
        arguments = {"pretrained": reference, "scheme": SCHEME}
        found.append(evaluate("quantdrift", tasks, KINDS, model_args=arguments, batch_size=32))

    def other() -> None:
        for single in (reference, candidate):
            evaluate("hf", tasks, KINDS, model_args={"pretrained": single}, batch_size=32)

    ratios = in_turn(ours, other, rounds=ROUNDS)
    seconds = found[-1]["quantdrift"]["seconds"]
    with capsys.disabled():
        report("paired evaluation / two stock ones", ratios, f"{name}, {_told(seconds)}")
    assert found[-1]["results"]["tiny_questions"]["drift_flip_at_1,none"] >= 0


def _told(seconds: dict[str, float]) -> str:
    parts: Sequence[str] = [f"{stage} {took:.1f} s" for stage, took in seconds.items()]
    return ", ".join(parts)
