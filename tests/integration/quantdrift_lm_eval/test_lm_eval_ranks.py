"""Several ranks, each with a pair of its own, gather one result: two processes on the CPU.

lm-eval sets a rank itself where there are several GPUs; on the CPU it leaves every process alone,
so the script does here what `HFLM.__init__` does there.
"""

import json
from pathlib import Path

import pytest

from integration.quantdrift_lm_eval.lm_eval_samples_maker import evaluate, lm_eval_command, save_model, write_tasks
from support.places import ROOT

pytestmark = pytest.mark.very_slow  # two processes that each load a harness

N = 11  # the ranks get 6 and 5 documents, and lm-eval pads the second
KINDS = ["questions", "last_word", "texts", "sums"]  # examples of other tasks differ by rank
SCHEME = "W4A8"
SCRIPT = """
import json, sys
from pathlib import Path

sys.path.insert(0, {folder!r})
from integration.quantdrift_lm_eval.lm_eval_samples_maker import evaluate
from support.places import ROOT
from quantdrift_lm_eval.model import QuantizedPairLM

lm = QuantizedPairLM("model", {scheme!r}, device="cpu", batch_size=4, evidence="runs")
lm._device = lm.accelerator.device
lm._rank, lm._world_size = lm.accelerator.local_process_index, lm.accelerator.num_processes
results = evaluate(lm, Path("tasks"), {kinds!r})
if results is not None:
    Path("results.json").write_text(json.dumps(results, default=str))
"""


def test_two_ranks_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "other cache"))
    model = save_model(tmp_path / "model")
    write_tasks(tmp_path / "tasks", model, N)
    folder = str(ROOT / "tests")
    (tmp_path / "script.py").write_text(SCRIPT.format(folder=folder, scheme=SCHEME, kinds=KINDS))
    launch = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29631")
    ran = lm_eval_command("script.py", cwd=tmp_path, first=launch, ACCELERATE_USE_CPU="true")
    assert ran.returncode == 0, ran.stderr[-4000:]
    two = json.loads((tmp_path / "results.json").read_text())
    alone = evaluate("quantdrift", tmp_path / "tasks", KINDS, model_args=f"pretrained=model,scheme={SCHEME}")
    for task, row in alone["results"].items():
        for name, value in row.items():
            if isinstance(value, float) and "perplexity_stderr" not in name:  # it draws by position
                assert two["results"][task][name] == pytest.approx(value, abs=1e-4), (task, name)
    assert [len(two["samples"][f"tiny_{kind}"]) for kind in KINDS] == [N, N, N, 2 * N]
    record = json.loads(next((tmp_path / "runs").glob("*/tiny_questions/run.json")).read_text())
    assert record["data"]["n_queries"] == N
    # every rank has prompts of its own, and calibrates on those of all
    requests = [r for samples in alone["samples"].values() for sample in samples for r in sample["arguments"]]
    assert record["quantization"]["calibration"]["of"] == len({r[0] for r in requests if len(r) > 1})
