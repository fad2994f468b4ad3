"""How much of a flip rate is the runtime's own: the model at full precision, in other configurations."""

from quantdrift.kinds.stage import STAGES
from quantdrift.spec.grammar import parse_scheme

METRICS = ("flip@1", "gold_lost@10", "change.ndcg@10", "epsilon", "interchangeable")
SCHEMES = [
    str(parse_scheme(f"fp+{name}={value}"))
    for name, option in STAGES["runtime"].options.items()
    for value in option.trial_values
]
"""A model at full precision in other configurations than the usual one, a setting at a time.

The usual one is float32, batches of 32, texts filled up on the right, the attention that transformers takes.
"""
