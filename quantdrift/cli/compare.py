"""`quantdrift compare`: compare two runs of one reference, input by input, without torch."""

from pathlib import Path

from quantdrift.cli.options import (
    MEAN_TOLERANCE,
    METRIC,
    SEED,
    TOLERANCE,
    argument,
    option,
    prints,
    share_option,
    tolerances_given,
)
from quantdrift.compare.two_runs import compare_runs
from quantdrift.metrics import parse_metric
from quantdrift.runs.folder import read_run
from quantdrift.runs.verdict import verdict
from quantdrift.show.comparison import comparison_grid, comparison_lines
from quantdrift.show.output import Output


@prints("json", "markdown")
def command(
    *,
    a: Path = argument("A: The run to compare with, e.g. of MODEL@W4-g64."),
    b: Path = argument("B: The run that is judged, e.g. of MODEL@W4-channel, on the same data."),
    metric: list[str] | None = option(METRIC),
    margin: float | None = share_option(
        "X: By how much B may be worse, in the metric's own unit: 0.02 is 2 percentage points of a rate, or 0.02 of "
        "nDCG. The verdict is then whether B is shown to be no worse by that much; by default it is only whether a "
        "difference is shown."
    ),
    alpha: float = share_option("P: Accepted chance of a wrong verdict, over all metrics together.", default=0.05),
    tolerance: float | None = share_option(TOLERANCE),
    mean_tolerance: float | None = share_option(MEAN_TOLERANCE),
    seed: int = option(SEED, default=0),
) -> Output:
    """Compare two candidates of one reference on the same inputs: is B worse than A, or no worse?

    The tests are exact or by resampling, input by input, and adjusted for the number of metrics. "No difference shown"
    is not "no difference": with --margin you ask whether B is no worse. The exit code is 0 whatever the verdict.

    The default metrics are flip@1, gold_lost, ndcg@10, recall, mrr@10 and separation, where defined; on classification
    data flip@1, gold_lost@1, accuracy and separation. Of these, flip@1, gold_lost@10, ndcg@10 and accuracy get a
    verdict, by the tests of quantdrift gate; the others are shown with their intervals. Every metric that -m names gets
    a verdict.

    For example: quantdrift compare quantdrift-runs/minilm@W4-g128-rtn_on_docs quantdrift-runs/minilm@W3*

    More: docs/reference/metrics.md
    """
    asked = [parse_metric(name) for name in metric or ()]
    comparison = compare_runs(read_run(a), read_run(b), asked or None, margin=margin, alpha=alpha, seed=seed)
    runs, given = (("A", comparison.a), ("B", comparison.b)), tolerances_given(tolerance, mean_tolerance)
    return Output(
        data=comparison.to_json(),
        about=[
            f"{name}  {run.record.get('spec')}  {run.path}  {verdict(run.record, given).word}" for name, run in runs
        ],
        grids=[comparison_grid(comparison)],
        lines=list(comparison_lines(comparison)),
    )
