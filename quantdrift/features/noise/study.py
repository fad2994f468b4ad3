"""The schemes and metrics of `quantdrift noise`."""

from quantdrift.kinds.stage import STAGES
from quantdrift.spec.grammar import parse_scheme

METRICS = ("flip@1", "gold_lost@10", "change.ndcg@10", "epsilon", "interchangeable")
SCHEMES = [
    str(parse_scheme(f"fp+{name}={value}"))
    for name, option in STAGES["runtime"].options.items()
    for value in option.trial_values
]
"""Full precision with one other runtime setting each. The default settings are float32, batches of 32, padding on the
right, and the attention that transformers chooses.
"""
