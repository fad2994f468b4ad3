"""quantdrift inside beir: one import and one wrap in a script that evaluates with beir.

    from quantdrift_beir import QuantizedPair
    evaluator = EvaluateRetrieval(DenseRetrievalExactSearch(QuantizedPair(model, "W4-rtn")))

Importing it wraps three functions of beir's (see `hooks`); models that are no pair go through untouched.
"""

from importlib.util import find_spec

from quantdrift.base.errors import MissingExtraError

if find_spec("beir") is None:
    raise MissingExtraError("beir", "beir", needed_for="quantdrift_beir")

from quantdrift_beir.hooks import wrap_beir
from quantdrift_beir.pairs import QuantizedPair
from quantdrift_beir.results import Drift, PairedResults

__all__ = ["Drift", "PairedResults", "QuantizedPair"]

wrap_beir()
