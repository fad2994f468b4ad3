"""The contract: all that another package imports to bring a part. docs/guides/extending.md has an example of each.

A name loads its module when it is first used, so that a package may import this at its top: torch comes with the
classes that compute, and not before.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # "as" says to type checkers that these are to be imported from here
    from quantdrift.base.errors import QuantDriftError as QuantDriftError
    from quantdrift.base.records import Record as Record
    from quantdrift.base.registry import Package as Package
    from quantdrift.cli import Command as Command
    from quantdrift.cli.options import OnCorpus as OnCorpus
    from quantdrift.cli.options import OnModel as OnModel
    from quantdrift.cli.options import argument as argument
    from quantdrift.cli.options import option as option
    from quantdrift.cli.options import prints as prints
    from quantdrift.data.retrieval import RetrievalDataset as RetrievalDataset
    from quantdrift.data.retrieval import read_beir_folder as read_beir_folder
    from quantdrift.data.sentences import SENTENCES as SENTENCES
    from quantdrift.encoders import EncoderKind as EncoderKind
    from quantdrift.engine.deployed import find_model as find_model
    from quantdrift.engine.encoders.model import EmbeddingModel as EmbeddingModel
    from quantdrift.engine.encoders.server_client import OneInputError as OneInputError
    from quantdrift.engine.pair import QuantizedPair as QuantizedPair
    from quantdrift.engine.quantizers.base import LayerQuantizer as LayerQuantizer
    from quantdrift.engine.quantizers.base import Moments as Moments
    from quantdrift.engine.quantizers.base import QuantizedWeight as QuantizedWeight
    from quantdrift.engine.quantizers.base import group_absmax as group_absmax
    from quantdrift.engine.quantizers.base import spread as spread
    from quantdrift.engine.refusals import read_candidate as read_candidate
    from quantdrift.engine.saving.save import make_candidate as make_candidate
    from quantdrift.engine.scoring.indexes import Found as Found
    from quantdrift.engine.scoring.indexes import SearchIndex as SearchIndex
    from quantdrift.engine.scoring.precision import Stored as Stored
    from quantdrift.engine.scoring.streamed import Similarity as Similarity
    from quantdrift.engine.stages import ModelStage as ModelStage
    from quantdrift.engine.stages import StagedModel as StagedModel
    from quantdrift.engine.stages import VectorStage as VectorStage
    from quantdrift.features.index.engine import Engine as Engine
    from quantdrift.features.index.engine import Order as Order
    from quantdrift.finished.contents import FinishedRun as FinishedRun
    from quantdrift.finished.contents import Part as Part
    from quantdrift.finished.contents import digest as digest
    from quantdrift.finished.formats import Format as Format
    from quantdrift.metrics import metric as metric
    from quantdrift.quantizers import Quantizer as Quantizer
    from quantdrift.scheme import Scheme as Scheme
    from quantdrift.show.output import Output as Output
    from quantdrift.show.tables import Grid as Grid
    from quantdrift.stages import Mend as Mend
    from quantdrift.stages import Option as Option
    from quantdrift.stages import Stage as Stage

_NAMES = {
    "base.errors": "QuantDriftError",
    "base.records": "Record",
    "base.registry": "Package",
    "cli": "Command",
    "cli.options": "OnCorpus OnModel argument option prints",
    "data.retrieval": "RetrievalDataset read_beir_folder",
    "data.sentences": "SENTENCES",
    "encoders": "EncoderKind",
    "engine.deployed": "find_model",
    "engine.encoders.model": "EmbeddingModel",
    "engine.encoders.server_client": "OneInputError",
    "engine.pair": "QuantizedPair",
    "engine.quantizers.base": "LayerQuantizer Moments QuantizedWeight group_absmax spread",
    "engine.refusals": "read_candidate",
    "engine.saving.save": "make_candidate",
    "engine.scoring.indexes": "Found SearchIndex",
    "engine.scoring.precision": "Stored",
    "engine.scoring.streamed": "Similarity",
    "engine.stages": "ModelStage StagedModel VectorStage",
    "features.index.engine": "Engine Order",
    "finished.contents": "FinishedRun Part digest",
    "finished.formats": "Format",
    "metrics": "metric",
    "quantizers": "Quantizer",
    "scheme": "Scheme",
    "show.output": "Output",
    "show.tables": "Grid",
    "stages": "Mend Option Stage",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""Name to the module that has it: the imports above, for whoever runs this."""

__all__ = [*_MODULES]  # noqa: PLE0604 -- names of the table above


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"quantdrift.parts has no {name!r}; it has {', '.join(sorted(_MODULES))}")
    from importlib import import_module  # noqa: PLC0415 -- as `quantdrift` has it

    return getattr(import_module(f"quantdrift.{_MODULES[name]}"), name)
