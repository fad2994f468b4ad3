"""The contract: all that another package imports to bring a part. docs/guides/extending.md has an example of each.

A name loads its module when it is first used, so that a package may import this at its top: torch comes with the
classes that compute, and not before.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # "as" says to type checkers that these are to be imported from here
    from quantdrift.base.display import in_one_line as in_one_line
    from quantdrift.base.display import note as note
    from quantdrift.base.display import shown as shown
    from quantdrift.base.errors import DataError as DataError
    from quantdrift.base.errors import QuantDriftError as QuantDriftError
    from quantdrift.base.errors import RunError as RunError
    from quantdrift.base.extras import extras_named as extras_named
    from quantdrift.base.progress import Progress as Progress
    from quantdrift.base.progress import progress_bars as progress_bars
    from quantdrift.base.records import Record as Record
    from quantdrift.base.records import read_json as read_json
    from quantdrift.base.records import validated as validated
    from quantdrift.base.registry import Package as Package
    from quantdrift.base.text import with_interval as with_interval
    from quantdrift.cli import Command as Command
    from quantdrift.cli import Interrupted as Interrupted
    from quantdrift.cli.measuring import output_folder as output_folder
    from quantdrift.cli.options import argument as argument
    from quantdrift.cli.options import flag as flag
    from quantdrift.cli.options import option as option
    from quantdrift.cli.options import prints as prints
    from quantdrift.data.retrieval import raw_lines as raw_lines
    from quantdrift.data.retrieval import read_lines as read_lines
    from quantdrift.data.streamed import DataKind as DataKind
    from quantdrift.data.streamed import Document as Document
    from quantdrift.data.streamed import Shard as Shard
    from quantdrift.data.streamed import StreamedDataset as StreamedDataset
    from quantdrift.data.streamed import document_of as document_of
    from quantdrift.data.streamed import is_url as is_url
    from quantdrift.data.streamed import json_documents as json_documents
    from quantdrift.encoders import EncoderKind as EncoderKind
    from quantdrift.engine.encoders.model import EmbeddingModel as EmbeddingModel
    from quantdrift.engine.quantizers.base import LayerQuantizer as LayerQuantizer
    from quantdrift.engine.quantizers.base import Moments as Moments
    from quantdrift.engine.quantizers.base import QuantizedWeight as QuantizedWeight
    from quantdrift.engine.quantizers.base import group_absmax as group_absmax
    from quantdrift.engine.quantizers.base import spread as spread
    from quantdrift.engine.scoring.indexes import Found as Found
    from quantdrift.engine.scoring.indexes import SearchIndex as SearchIndex
    from quantdrift.engine.scoring.precision import Stored as Stored
    from quantdrift.engine.scoring.streamed import Similarity as Similarity
    from quantdrift.engine.stages import ModelStage as ModelStage
    from quantdrift.engine.stages import StagedModel as StagedModel
    from quantdrift.engine.stages import VectorStage as VectorStage
    from quantdrift.evidence.record import Evidence as Evidence
    from quantdrift.features.index.engine import Engine as Engine
    from quantdrift.features.index.engine import Order as Order
    from quantdrift.finished.contents import FinishedRun as FinishedRun
    from quantdrift.finished.contents import Part as Part
    from quantdrift.finished.contents import digest as digest
    from quantdrift.finished.formats import Format as Format
    from quantdrift.finished.texts import read_texts as read_texts
    from quantdrift.metrics import metric as metric
    from quantdrift.quantizers import Quantizer as Quantizer
    from quantdrift.runs.folder import Run as Run
    from quantdrift.runs.folder import find_runs as find_runs
    from quantdrift.scheme import Scheme as Scheme
    from quantdrift.show.output import Output as Output
    from quantdrift.show.tables import Grid as Grid
    from quantdrift.stages import Mend as Mend
    from quantdrift.stages import Option as Option
    from quantdrift.stages import Stage as Stage
    from quantdrift.statistics.estimates import Estimate as Estimate
    from quantdrift.statistics.estimates import as_json as as_json
    from quantdrift.statistics.kinds import estimate as estimate
    from quantdrift.statistics.kinds import paired_difference as paired_difference
    from quantdrift.statistics.paired import mcnemar_exact as mcnemar_exact
    from quantdrift.statistics.verdicts import holm as holm

_NAMES = {
    "base.display": "in_one_line note shown",
    "base.errors": "DataError QuantDriftError RunError",
    "base.extras": "extras_named",
    "base.progress": "Progress progress_bars",
    "base.records": "Record read_json validated",
    "base.registry": "Package",
    "base.text": "with_interval",
    "cli": "Command Interrupted",
    "cli.measuring": "output_folder",
    "cli.options": "argument flag option prints",
    "data.retrieval": "raw_lines read_lines",
    "data.streamed": "DataKind Document Shard StreamedDataset document_of is_url json_documents",
    "encoders": "EncoderKind",
    "engine.encoders.model": "EmbeddingModel",
    "engine.quantizers.base": "LayerQuantizer Moments QuantizedWeight group_absmax spread",
    "engine.scoring.indexes": "Found SearchIndex",
    "engine.scoring.precision": "Stored",
    "engine.scoring.streamed": "Similarity",
    "engine.stages": "ModelStage StagedModel VectorStage",
    "evidence.record": "Evidence",
    "features.index.engine": "Engine Order",
    "finished.contents": "FinishedRun Part digest",
    "finished.formats": "Format",
    "finished.texts": "read_texts",
    "metrics": "metric",
    "quantizers": "Quantizer",
    "runs.folder": "Run find_runs",
    "scheme": "Scheme",
    "show.output": "Output",
    "show.tables": "Grid",
    "stages": "Mend Option Stage",
    "statistics.estimates": "Estimate as_json",
    "statistics.kinds": "estimate paired_difference",
    "statistics.paired": "mcnemar_exact",
    "statistics.verdicts": "holm",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""Name to the module that has it: the imports above, for whoever runs this."""

__all__ = [*_MODULES]  # noqa: PLE0604 -- names of the table above


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"quantdrift.parts has no {name!r}; it has {', '.join(sorted(_MODULES))}")
    from importlib import import_module  # noqa: PLC0415 -- as `quantdrift` has it

    return getattr(import_module(f"quantdrift.{_MODULES[name]}"), name)
