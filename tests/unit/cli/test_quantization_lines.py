"""What the table of a run says of how its candidate was made."""

from __future__ import annotations

from typing import Any

from quantdrift.cli.quantization import quantization_lines

CALIBRATION = {"source": "corpus", "n_inputs": 512, "wanted": 512, "of": 1400, "seed": 0}
MADE: dict[str, Any] = {
    "quantizer": "gptq",
    "backend": "gptqmodel",
    "version": "7.6.0",
    "grid": "symmetric absmax",
    "calibration": CALIBRATION,
    "layers_kept_from_before": 0,
    "layers": [{}, {}],
    "seconds": 61.2,
    "seconds_in_method": 7.5,
    "fallbacks": {},
}


def lines(unreached: tuple[str, ...] = (), **changes: Any) -> list[str]:
    made = {**MADE, **changes}
    return quantization_lines({"quantization": made, "model": {"layers_never_reached": list(unreached)}})


def test_library_and_calibration() -> None:
    assert lines() == [
        "gptq by gptqmodel 7.6.0, grid: symmetric absmax",
        "calibrated on 512 of 1,400 documents (seed 0) in 61 s, of which the method took 8",
    ]


def test_a_calibration_from_before_and_one_on_a_file() -> None:
    file = {**CALIBRATION, "source": "texts.txt", "n_inputs": 12, "of": 12}
    found = lines(layers_kept_from_before=2, calibration=file)[1]
    assert found == "calibrated on 12 texts of texts.txt (seed 0), kept from an earlier run"
    found = lines(layers_kept_from_before=2, calibration={**CALIBRATION, "source": "texts.txt"})[1]
    assert found.startswith("calibrated on 512 of 1,400 texts of texts.txt (seed 0)")


def test_fewer_documents_than_were_wanted() -> None:
    few = {**CALIBRATION, "n_inputs": 40, "of": 40}
    assert lines(calibration=few)[1].startswith("calibrated on all 40 documents (512 were wanted) in 61 s")
    enough = {**few, "wanted": 40}
    assert lines(calibration=enough)[1].startswith("calibrated on 40 of 40 documents (seed 0) in")
    del few["wanted"]  # a run of an earlier version
    assert lines(calibration=few)[1].startswith("calibrated on 40 of 40 documents (seed 0) in")


def test_few_tokens_deserve_a_word() -> None:
    layers = [{"n_tokens": 310}, {"n_tokens": 9_999}, {"n_tokens": None}]
    assert "few tokens to calibrate on: 9,999 at most in a layer" in lines(layers=layers)[2]
    assert len(lines(layers=[*layers, {"n_tokens": 10_000}])) == 2
    assert len(lines(layers=[{"n_tokens": 0}])) == 2  # nothing was reached: the fallbacks say so


def test_every_fallback_has_its_own_reason() -> None:
    fallbacks = {f"expert.{n}": "no calibration token reached it" for n in range(6)}
    fallbacks["pooler"] = "outside the blocks that optimum quantizes"
    assert lines(fallbacks=fallbacks)[2:] == [
        "rounded to nearest, no calibration token reached it: expert.0, expert.1, expert.2, expert.3 and 2 more",
        "rounded to nearest, outside the blocks that optimum quantizes: pooler",
    ]


def test_activations_that_are_quantized_in_part() -> None:
    part = {"bits": 8, "layers_covered": 2, "layers": 3, "not_covered": ["attention"]}
    assert lines(activations=part)[2] == (
        "inputs of 2 of 3 linear layers at 8 bits; not of attention, so activations are quantized only in part"
    )


def test_what_is_left_out_or_without_effect() -> None:
    found = lines(("pooler",), layers_left_out={"head": "shares its weight with an embedding"})
    assert found[2] == "left at full precision: head"
    assert found[3].startswith("unused layer")
    assert found[3].endswith(": pooler")


def test_a_run_of_an_earlier_version_says_nothing() -> None:
    assert quantization_lines({"model": {}}) == []


ALLOCATION: dict[str, Any] = {
    "criterion": "gap",
    "bits_per_weight": 3.4963,
    "widths": {"a": 4, "b": 3, "c": 4},
    "calibration_inputs": 128,
    "dataset": "cranfield",
    "edited": False,
}


def widths(**changes: Any) -> str:
    made = {"quantizer": "rtn", "allocation": {**ALLOCATION, **changes}}
    (line,) = quantization_lines({"quantization": made, "model": {}})
    return line


def test_widths_and_what_chose_them() -> None:
    assert widths() == ("3.50 bits per weight: 1 layer at 3, 2 at 4 bits, by gap on 128 inputs of cranfield")
    assert widths(calibration_inputs=0, criterion="sqnr").endswith("4 bits, by sqnr")
    assert "4 bits, changed by hand after gap on 128 inputs" in widths(edited=True)
    assert "by gap on 128 inputs of the data" in widths(dataset=None)


def test_layers_that_are_kept_are_counted_too() -> None:
    kept = {"a": 4, "b": 8, "c": 16, "d": 16}
    assert "1 layer at 4, 1 at 8 bits, 2 not quantized, by gap" in widths(widths=kept)
    assert widths(widths={"a": 16}, bits_per_weight=None).startswith("1 layer not quantized, by")


def test_queries_that_were_left_out() -> None:
    made = {"quantizer": "rtn", "allocation": ALLOCATION}
    data = {"n_queries": 1500, "inputs_left_out": 128}
    record = {"quantization": made, "model": {}, "data": data}
    assert quantization_lines(record)[1] == (
        "128 queries that layers were measured on are left out: every figure is over the other 1,372"
    )
    assert len(quantization_lines({**record, "data": {**data, "inputs_left_out": 0}})) == 1
    assert len(quantization_lines({**record, "data": {"n_queries": 1500}})) == 1  # an earlier run
