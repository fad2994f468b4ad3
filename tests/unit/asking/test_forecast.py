"""What is told of a measurement before it begins, against what measurements took."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantdrift.asking import forecast as forecasts
from quantdrift.asking import rate as rates
from quantdrift.asking.ask import Ask
from quantdrift.asking.forecast import Forecast, Side, forecast, memory_left
from quantdrift.asking.rate import Rate, rate_of
from quantdrift.base.errors import RoomError, UnsupportedError
from quantdrift.data.retrieval import RetrievalDataset, facts_of
from quantdrift.kinds.stage import STAGES
from quantdrift.measuring.problem import contenders_for
from quantdrift.models.files.shape import Shape, shape_in
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore
from quantdrift.spec.grammar import parse, parse_scheme

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "recorded.json").read_text())
"""What `tests/benchmarks/record_forecast.py` wrote: CPU seconds of commands, and the rate before and after each."""
MINILM = {
    **{"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    **{"vocab_size": 30522, "max_position_embeddings": 512, "hidden_act": "gelu"},
}
QWEN = {
    **{"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8},
    **{"head_dim": 128, "intermediate_size": 3072, "vocab_size": 151669, "hidden_act": "silu"},
}


DATA = RetrievalDataset(
    name="d", query_ids=("q",), queries=["a"], document_ids=("c",), documents=["b"], qrels={}, split="test"
)


def rate(operations: float = 1e10, device: str = "cpu") -> Rate:
    return Rate(device=device, dtype="float32", operations=operations, measured=0.0)


def read(facts: dict[str, Any], operations: float) -> Forecast:
    """A forecast as it was recorded, at a rate."""
    sides = {name: value and Side(**value) for name, value in facts.items() if name in {"train", "calibration"}}
    shape = {**facts["shape"], "matrices": tuple(map(tuple, facts["shape"]["matrices"]))}
    return Forecast(
        **{
            **{**facts, **sides, "name": ""},
            "rate": rate(operations),
            "shape": Shape(**shape),
            "sides": tuple(Side(**side) for side in facts["sides"]),
            "scheme": facts["scheme"] and parse_scheme(facts["scheme"]),
            "settings": Settings(**facts["settings"]),
        }
    )


def told(scheme: str = "W4", **changes: Any) -> Forecast:
    """Of 100 queries of 10 tokens and 1,000 documents of 100."""
    shape = shape_in(MINILM)
    assert shape is not None
    sides = tuple(Side.of(np.full(n, float(length)), 32) for n, length in ((100, 10), (1000, 100)))
    return Forecast(name="x", rate=rate(), shape=shape, sides=sides, scheme=parse_scheme(scheme), **changes)


def seconds(made: Forecast) -> dict[str, float]:
    return {step.stage: step.seconds for step in made.steps}


def test_twelve_commands_or_more_were_recorded() -> None:
    assert len(RECORDED) >= 12


@pytest.mark.parametrize("command", RECORDED)
def test_it_is_within_a_factor_of_one_and_a_half_of_what_was_measured(command: str) -> None:
    run = RECORDED[command]
    expected = sum(read(each, float(np.mean(run["rates"]))).seconds for each in run["of"])
    assert 1 / 1.5 < expected / run["cpu"] < 1.5


def test_sizes_come_from_config_json_alone() -> None:
    minilm, qwen = shape_in(MINILM), shape_in(QWEN)
    assert minilm is not None
    assert qwen is not None
    assert minilm.linear == 6 * (4 * 384 * 384 + 2 * 384 * 1536)  # 12 h^2 a block, where inner is 4 h
    assert minilm.parameters == pytest.approx(22_713_216, rel=0.02)  # as transformers counts them
    assert qwen.parameters == pytest.approx(595_776_512, rel=0.001)  # as its model card does


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": None},
        {"hidden_size": "384"},
        {"num_hidden_layers": 1 << 40},
        {"num_attention_heads": 7},
        {"num_experts": 8},
    ],
)
def test_a_config_that_does_not_tell_sizes_gives_none(change: dict[str, Any]) -> None:
    assert shape_in({**MINILM, **change}) is None


@given(st.lists(st.integers(1, 512), min_size=1, max_size=80), st.integers(1, 40))
def test_padding_adds_tokens_and_never_more_than_the_longest_has(lengths: list[int], batch_size: int) -> None:
    side = Side.of(np.array(lengths, dtype=np.float64), batch_size)
    assert sum(lengths) <= side.tokens <= max(lengths) * len(lengths)
    assert Side.of(np.array(lengths, dtype=np.float64), 1).tokens == sum(lengths)
    assert side.part(side.n).tokens == pytest.approx(side.tokens)


def test_a_pass_is_counted_as_two_operations_a_weight_and_token_and_attention() -> None:
    made = told()
    tokens = 100 * 10 + 1000 * 100
    attention = 4 * 6 * 384 * (100 * 10**2 + 1000 * 100**2)
    products = 2 * made.shape.linear * tokens
    assert seconds(made)["reference"] == pytest.approx(forecasts._BESIDE * (products + attention) / 1e10)


def test_what_is_kept_or_the_same_costs_nothing() -> None:
    plain = seconds(told())
    assert plain["reference"] == plain["candidate"] > 0
    assert "reference" not in seconds(told(kept=True))
    assert seconds(told("W4+query"))["candidate"] < plain["candidate"] / 50
    assert seconds(told("fp+emb=int8"))["candidate"] == 0
    assert "candidate" not in seconds(told("W3.5+gap", measures=False))
    assert seconds(told("W3.5+gap", measures=False))["allocation"] > 0
    assert "noise floor" not in seconds(told(settings=Settings(noise_floor=False)))


def test_a_quantizer_and_a_stage_say_themselves_what_they_cost() -> None:
    data_free, solved = seconds(told("W4"))["quantization"], seconds(told("W4-gptq"))["calibration"]
    assert solved > 10 * data_free
    assert seconds(told("W4-gptq+tuned"))["tuned"] > 0
    two, three = (told(f"W{bits}+gap_exact+widths={widths}") for bits, widths in (("3.5", "3,4"), ("3.5", "2,3,4")))
    assert seconds(three)["allocation"] == pytest.approx(2 * seconds(two)["allocation"])


def test_advice_is_what_applies_and_is_worth_it() -> None:
    assert any(line.startswith("+query") for line in told().cheaper)
    assert not any("+query" in line for line in (*told("W4+query").cheaper, *told("fp+emb=int8").cheaper))
    assert not any("--limit" in line for line in told().cheaper)  # documents take nearly all of it
    assert any("--no-cache" in line for line in told("W4+query", keeps=False).cheaper)
    on_gpu = replace(told(), rate=rate(1e10, "cuda:0"))
    assert "--dtype bfloat16" in on_gpu.cheaper
    assert "--dtype bfloat16" not in told().cheaper


def test_what_cannot_fit_is_refused_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made, store = told(), EmbeddingStore(tmp_path)
    monkeypatch.setattr(forecasts, "memory_left", made.at_least)
    made.check_room(store)
    monkeypatch.setattr(forecasts, "memory_left", lambda: made.at_least() - 1)
    with pytest.raises(RoomError, match=r"x needs \d+ MB of memory .*bfloat16.* QUANTDRIFT_FORECAST=off"):
        made.check_room(store)
    monkeypatch.setattr(forecasts, "memory_left", lambda: made.at_least() // 3)
    with pytest.raises(RoomError, match="a smaller model"):
        made.check_room(store)
    monkeypatch.setattr(forecasts, "memory_left", lambda: None)
    usage = type("Usage", (), {"free": made.disk - 1})()
    monkeypatch.setattr(forecasts.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(RoomError, match="--no-cache"):
        made.check_room(store)
    made.check_room(EmbeddingStore(None))


def test_free_memory_is_known_here() -> None:
    left = memory_left()
    assert left is None or 0 <= left < 1 << 50


def test_a_rate_is_measured_once_a_day_and_again_where_its_file_is_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured, now = list[float](), time.time()

    def probe(*_: Any, **__: Any) -> Rate:
        measured.append(now)
        return rate().model_copy(update={"measured": now})

    monkeypatch.setattr(rates, "measured_rate", probe)
    how: Any = {"device": None, "dtype": "float32", "root": tmp_path}
    shape = told().shape
    assert rate_of(shape, **how) == rate_of(shape, **how)
    assert len(measured) == 1
    file = next(tmp_path.rglob("*.json"))
    file.write_text(file.read_text().replace("cpu", "gpu"))
    rate_of(shape, **how)
    assert len(measured) == 2
    monkeypatch.setattr(rates.time, "time", lambda: now + 86401)
    rate_of(shape, **how)
    assert len(measured) == 3
    rate_of(shape, **{**how, "dtype": "bfloat16"})
    assert len(measured) == 4


def test_the_rate_of_this_machine_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
    monkeypatch.setattr(rates, "_SECONDS", 0.01)
    made = rates.measured_rate(told().shape, device="cpu", dtype="float32")
    assert made.device == "cpu"
    assert math.isfinite(made.operations)
    assert made.operations > 1e6


def test_a_model_far_too_large_is_refused_before_a_block_of_it_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")
    huge = {**MINILM, "hidden_size": 600_000, "intermediate_size": 1_000_000, "num_hidden_layers": 1_000_000}
    (tmp_path / "config.json").write_text(json.dumps(huge))
    monkeypatch.setattr(rates, "measured_rate", None)  # would be called
    ask = Ask(pair=parse(f"{tmp_path}@W4"), data=facts_of(DATA), dataset=DATA)
    with pytest.raises(RoomError, match="a smaller model"):
        forecast(ask, settings=Settings(), store=EmbeddingStore(None), device="cpu")


def test_a_model_without_sizes_has_no_forecast(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    ask = Ask(pair=parse(f"{tmp_path}@W4"), data=facts_of(DATA), dataset=DATA)
    with pytest.raises(UnsupportedError, match=r"config\.json"):
        forecast(ask, settings=Settings(), store=EmbeddingStore(None))


@pytest.mark.parametrize("queries", [1, 20, 50, 128, 300])
def test_gaps_are_counted_as_they_are_measured(queries: int) -> None:
    scheme = parse_scheme(f"W3.5+gap+queries={queries}")
    contenders = contenders_for(queries)  # of each a forward pass, as of the query and the top-1, and a gap
    assert STAGES["weights"].passes(scheme, 1000, 36) == queries * (2 + contenders) * (1 + 2 * contenders)
    usual, asked = (
        STAGES["weights"].passes(parse_scheme(f"W3.5+gap{more}"), 1000, 36) for more in ("", "+queries=128")
    )
    assert usual == asked
