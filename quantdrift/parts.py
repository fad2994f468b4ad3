"""The contract: all that another package imports to bring a part. docs/guides/extending.md has an example of each.

A name loads its module when it is first used, so that a package may import this at its top: torch comes with the
classes that compute, and not before.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # "as" says to type checkers that these are to be imported from here
    from quantdrift.asking.deployed import find_model as find_model
    from quantdrift.asking.saving import make_candidate as make_candidate
    from quantdrift.base.display import clean as clean
    from quantdrift.base.errors import QuantDriftError as QuantDriftError
    from quantdrift.base.errors import ServerError as ServerError
    from quantdrift.base.errors import UnsupportedError as UnsupportedError
    from quantdrift.base.extras import refuse_missing as refuse_missing
    from quantdrift.base.keys import KeyNames as KeyNames
    from quantdrift.base.keys import find_key as find_key
    from quantdrift.base.keys import is_loopback as is_loopback
    from quantdrift.base.keys import without_key as without_key
    from quantdrift.base.logs import captured_logs as captured_logs
    from quantdrift.base.records import Record as Record
    from quantdrift.base.registry import Package as Package
    from quantdrift.base.registry import Registry as Registry
    from quantdrift.builtin.index.engine import Engine as Engine
    from quantdrift.builtin.index.engine import Order as Order
    from quantdrift.candidate.pair import QuantizedPair as QuantizedPair
    from quantdrift.candidate.quantized import LayerQuantizer as LayerQuantizer
    from quantdrift.candidate.quantized import Moments as Moments
    from quantdrift.candidate.quantized import QuantizedWeight as QuantizedWeight
    from quantdrift.candidate.quantized import group_absmax as group_absmax
    from quantdrift.candidate.quantized import spread as spread
    from quantdrift.candidate.refusals import read_candidate as read_candidate
    from quantdrift.candidate.stages import ModelStage as ModelStage
    from quantdrift.candidate.stages import StagedModel as StagedModel
    from quantdrift.cli import Command as Command
    from quantdrift.cli.options import OnCorpus as OnCorpus
    from quantdrift.cli.options import OnModel as OnModel
    from quantdrift.cli.options import argument as argument
    from quantdrift.cli.options import option as option
    from quantdrift.cli.options import prints as prints
    from quantdrift.data.retrieval import RetrievalDataset as RetrievalDataset
    from quantdrift.data.retrieval import read_beir_folder as read_beir_folder
    from quantdrift.data.sentences import SENTENCES as SENTENCES
    from quantdrift.finished.contents import FinishedRun as FinishedRun
    from quantdrift.finished.contents import Part as Part
    from quantdrift.finished.contents import digest as digest
    from quantdrift.finished.formats import Format as Format
    from quantdrift.kinds.encoder import EncoderKind as EncoderKind
    from quantdrift.kinds.quantizer import Quantizer as Quantizer
    from quantdrift.kinds.stage import Advice as Advice
    from quantdrift.kinds.stage import Option as Option
    from quantdrift.kinds.stage import Stage as Stage
    from quantdrift.metrics import metric as metric
    from quantdrift.models.model import EmbeddingModel as EmbeddingModel
    from quantdrift.models.server_client import OneInputError as OneInputError
    from quantdrift.scheme import Scheme as Scheme
    from quantdrift.scoring.indexes import DEFAULT_LIMIT as DEFAULT_LIMIT
    from quantdrift.scoring.indexes import Found as Found
    from quantdrift.scoring.indexes import SearchIndex as SearchIndex
    from quantdrift.scoring.similarity import Similarity as Similarity
    from quantdrift.scoring.stages import VectorStage as VectorStage
    from quantdrift.scoring.stored import Stored as Stored
    from quantdrift.show.output import Output as Output
    from quantdrift.show.tables import Grid as Grid

_NAMES = {
    "asking.deployed": "find_model",
    "asking.saving": "make_candidate",
    "base.display": "clean",
    "base.errors": "QuantDriftError ServerError UnsupportedError",
    "base.extras": "refuse_missing",
    "base.keys": "KeyNames find_key is_loopback without_key",
    "base.logs": "captured_logs",
    "base.records": "Record",
    "base.registry": "Package Registry",
    "builtin.index.engine": "Engine Order",
    "candidate.pair": "QuantizedPair",
    "candidate.quantized": "LayerQuantizer Moments QuantizedWeight group_absmax spread",
    "candidate.refusals": "read_candidate",
    "candidate.stages": "ModelStage StagedModel",
    "cli": "Command",
    "cli.options": "OnCorpus OnModel argument option prints",
    "data.retrieval": "RetrievalDataset read_beir_folder",
    "data.sentences": "SENTENCES",
    "finished.contents": "FinishedRun Part digest",
    "finished.formats": "Format",
    "kinds.encoder": "EncoderKind",
    "kinds.quantizer": "Quantizer",
    "kinds.stage": "Advice Option Stage",
    "metrics": "metric",
    "models.model": "EmbeddingModel",
    "models.server_client": "OneInputError",
    "scheme": "Scheme",
    "scoring.indexes": "DEFAULT_LIMIT Found SearchIndex",
    "scoring.similarity": "Similarity",
    "scoring.stages": "VectorStage",
    "scoring.stored": "Stored",
    "show.output": "Output",
    "show.tables": "Grid",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""Name to the module that has it: the imports above, for whoever runs this."""

__all__ = [*_MODULES]  # noqa: PLE0604 -- names of the table above


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"quantdrift.parts has no {name!r}; it has {', '.join(sorted(_MODULES))}")
    from importlib import import_module  # noqa: PLC0415 -- as `quantdrift` has it

    return getattr(import_module(f"quantdrift.{_MODULES[name]}"), name)
