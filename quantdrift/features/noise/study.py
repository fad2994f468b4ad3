"""How much of a flip rate is the runtime's own: the model at full precision, in other configurations."""

from pathlib import Path

from quantdrift.base.errors import RunError
from quantdrift.kinds.stage import STAGES
from quantdrift.models.files.named import resolve
from quantdrift.runs.folder import Run, read_run
from quantdrift.spec.grammar import parse_scheme

METRICS = ("flip@1", "gold_lost@10", "change.ndcg@10", "epsilon", "interchangeable")
SCHEMES = [
    str(parse_scheme(f"fp+{name}={value}"))
    for name, option in STAGES["runtime"].options.items()
    for value in option.usual
]
"""A model at full precision in other configurations than the usual one, a setting at a time.

The usual one is float32, batches of 32, texts filled up on the right, the attention that transformers takes.
"""


def run_on(path: Path, fingerprint: str, model: str) -> Run:
    """Read the run that --against names; refuse one of another model or on other data."""
    run = read_run(path)
    if run.record["model"].get("canonical") not in {None, resolve(model).canonical}:
        raise RunError(f"expected --against with a run of {model}; that of {path} is of {run.record['model']['name']}")
    if run.record["data"].get("fingerprint") != fingerprint:
        raise RunError(
            f"expected --against with a run on these data; that of {path} is on other data or a part of them"
        )
    return run
