import json
import math
from pathlib import Path

import pytest

from scripts.compare_flips import (
    MismatchError,
    compare_folders,
    main,
    mcnemar_exact,
)


DATE = "2026-01-02T03-04-05.678901"


def question(doc_id: int, scores: list[float], gold: int = 0, **changes) -> dict:
    """A multiple-choice sample as `--log_samples` writes it."""
    sample = {
        "doc_id": doc_id,
        "doc": {"q": f"q{doc_id}"},
        "target": str(gold),
        "arguments": {
            f"gen_args_{n}": {"arg_0": f"q{doc_id}:", "arg_1": f" choice {n}"}
            for n in range(len(scores))
        },
        "filtered_resps": [[str(score), "False"] for score in scores],
        "filter": "none",
        "metrics": ["acc"],
        "doc_hash": f"doc {doc_id}",
        "prompt_hash": f"prompt {doc_id}",
        "target_hash": f"target {doc_id}",
        "acc": float(scores.index(max(scores)) == gold),
    }
    return {**sample, **changes}


def text(doc_id: int, said: str, target: str, name: str = "none") -> dict:
    """A sample of generated text."""
    return question(
        doc_id,
        [0.0],
        arguments={"gen_args_0": {"arg_0": "q", "arg_1": {"until": ["\n"]}}},
        filtered_resps=[said],
        filter=name,
        metrics=["exact_match"],
        exact_match=float(said == target),
    )


def write(folder: Path, samples: list[dict], task: str = "toy") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(sample) + "\n" for sample in samples]
    (folder / f"samples_{task}_{DATE}.jsonl").write_text("".join(lines))
    return folder


RIGHT, WRONG, OTHER = [-1.0, -2.0, -3.0], [-2.0, -1.0, -3.0], [-3.0, -2.0, -1.0]


def test_flips_by_hand(tmp_path, capsys):
    before = [RIGHT, RIGHT, RIGHT, WRONG, WRONG, WRONG]
    after = [RIGHT, WRONG, OTHER, RIGHT, OTHER, WRONG]
    a, b = (
        write(tmp_path / name, [question(n, scores) for n, scores in enumerate(arm)])
        for name, arm in (("a", before), ("b", after))
    )
    (row,) = compare_folders(a, b)
    assert (row.docs, row.changed, row.lost, row.won) == (6, 4, 2, 1)
    assert (row.before, row.after, row.metric) == (3 / 6, 2 / 6, "acc")
    assert row.p_value == 1.0  # 2 against 1 of 3
    assert [(f.doc_id, f.kind, f.before, f.after) for f in row.flips] == [
        (1, "lost", "0", "1"),
        (2, "lost", "0", "2"),
        (3, "won", "1", "0"),
        (4, "changed", "1", "2"),  # wrong before and after: no accuracy shows it
    ]
    assert main([str(a), str(b), "--documents"]) == 0
    assert "lost 2: '0' -> '2'" in capsys.readouterr().out
    assert main([str(a), str(b), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["flips"][3]["kind"] == "changed"


@pytest.mark.parametrize(
    "lost, won, p",
    [(0, 0, 1.0), (5, 0, 2 / 32), (0, 5, 2 / 32), (7, 2, 92 / 512), (3, 3, 1.0)],
)
def test_mcnemar_by_hand(lost, won, p):
    assert mcnemar_exact(lost, won) == p


def test_mcnemar_of_many_documents():
    """Where an approximation would do, both agree; where floats underflow, 0.0."""
    z = (5200 - 4800 - 1) / math.sqrt(10000)
    assert mcnemar_exact(5200, 4800) == pytest.approx(
        math.erfc(z / math.sqrt(2)), rel=1e-2
    )
    assert mcnemar_exact(3000, 0) == 0.0


def test_generated_text_after_each_filter(tmp_path):
    a = write(tmp_path / "a", [text(0, "4", "4"), text(0, "4 .", "4", "raw")])
    b = write(tmp_path / "b", [text(0, "4", "4"), text(0, "4!", "4", "raw")])
    none, raw = compare_folders(a, b)
    assert (none.filter, none.changed, none.lost) == ("none", 0, 0)
    assert (raw.filter, raw.changed, raw.lost, raw.won) == ("raw", 1, 0, 0)


def test_a_metric_that_is_no_right_or_wrong_counts_changes_alone(tmp_path):
    a = write(tmp_path / "a", [question(0, RIGHT, metrics=["f1"], f1=0.5)])
    b = write(tmp_path / "b", [question(0, WRONG, metrics=["f1"], f1=0.4)])
    (row,) = compare_folders(a, b)
    assert (row.changed, row.lost, row.metric, row.p_value) == (1, None, None, None)
    with pytest.raises(MismatchError, match="f1"):
        compare_folders(a, b, metric="f1")


@pytest.mark.parametrize(
    "other, says",
    [
        ([question(0, RIGHT)], "documents"),
        ([question(0, RIGHT), question(1, RIGHT, doc_hash="x")], "doc_hash"),
        ([question(0, RIGHT), question(1, RIGHT, prompt_hash="x")], "prompt_hash"),
        ([question(0, RIGHT), question(1, RIGHT + [-4.0])], "arguments"),
        ([question(0, RIGHT, filter="x"), question(1, RIGHT, filter="x")], "filters"),
        ([question(0, RIGHT), question(0, RIGHT)], "twice"),
        ([{"doc_id": 0}], "no sample"),
    ],
)
def test_runs_that_were_not_asked_the_same_are_refused(tmp_path, capsys, other, says):
    a = write(tmp_path / "a", [question(0, RIGHT), question(1, RIGHT)])
    b = write(tmp_path / "b", other)
    with pytest.raises(MismatchError, match=says):
        compare_folders(a, b)
    assert main([str(a), str(b)]) == 2
    assert says in capsys.readouterr().err


def test_tasks_have_to_be_the_same_or_be_named(tmp_path):
    a = write(write(tmp_path / "a", [question(0, RIGHT)]), [question(0, RIGHT)], "two")
    b = write(tmp_path / "b", [question(0, WRONG)])
    with pytest.raises(MismatchError, match="two"):
        compare_folders(a, b)
    assert [row.lost for row in compare_folders(a, b, tasks=["toy"])] == [1]


def test_the_newest_file_of_one_model_counts(tmp_path):
    a = write(tmp_path / "a" / "model", [question(0, RIGHT)])
    old = json.dumps(question(0, WRONG))
    (a / f"samples_toy_{DATE.replace('2026', '2025')}.jsonl").write_text(old)
    assert compare_folders(tmp_path / "a", a)[0].changed == 0
    write(tmp_path / "a" / "model2", [question(0, RIGHT)])
    with pytest.raises(MismatchError, match="several models"):
        compare_folders(tmp_path / "a", a)
    with pytest.raises(MismatchError, match="log_samples"):
        compare_folders(tmp_path, a)
