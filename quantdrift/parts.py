"""The contract: all that another package imports to bring a part. docs/guides/extending.md has an example of each.

A name loads its module when it is first used, so that a package may import this at its top: torch comes with the
classes that compute, and not before.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # "as" says to type checkers that these are to be imported from here
    from quantdrift.asking.deployed import find_model as find_model
    from quantdrift.asking.saving import make_candidate as make_candidate
    from quantdrift.base.display import clean as clean
    from quantdrift.base.display import in_one_line as in_one_line
    from quantdrift.base.display import note as note
    from quantdrift.base.display import shown as shown
    from quantdrift.base.errors import DataError as DataError
    from quantdrift.base.errors import QuantDriftError as QuantDriftError
    from quantdrift.base.errors import RunError as RunError
    from quantdrift.base.errors import ServerError as ServerError
    from quantdrift.base.errors import UnsupportedError as UnsupportedError
    from quantdrift.base.extras import extras_named as extras_named
    from quantdrift.base.extras import refuse_missing as refuse_missing
    from quantdrift.base.keys import KeyNames as KeyNames
    from quantdrift.base.keys import find_key as find_key
    from quantdrift.base.keys import is_loopback as is_loopback
    from quantdrift.base.keys import without_key as without_key
    from quantdrift.base.logs import captured_logs as captured_logs
    from quantdrift.base.progress import Progress as Progress
    from quantdrift.base.progress import progress_bars as progress_bars
    from quantdrift.base.records import Record as Record
    from quantdrift.base.records import read_json as read_json
    from quantdrift.base.records import validated as validated
    from quantdrift.base.registry import Package as Package
    from quantdrift.base.registry import Registry as Registry
    from quantdrift.base.text import with_interval as with_interval
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
    from quantdrift.cli import Interrupted as Interrupted
    from quantdrift.cli.measuring import output_folder as output_folder
    from quantdrift.cli.options import OnCorpus as OnCorpus
    from quantdrift.cli.options import OnModel as OnModel
    from quantdrift.cli.options import argument as argument
    from quantdrift.cli.options import flag as flag
    from quantdrift.cli.options import option as option
    from quantdrift.cli.options import prints as prints
    from quantdrift.data.retrieval import RetrievalDataset as RetrievalDataset
    from quantdrift.data.retrieval import raw_lines as raw_lines
    from quantdrift.data.retrieval import read_beir_folder as read_beir_folder
    from quantdrift.data.retrieval import read_lines as read_lines
    from quantdrift.data.sentences import SENTENCES as SENTENCES
    from quantdrift.data.streamed import DataKind as DataKind
    from quantdrift.data.streamed import Document as Document
    from quantdrift.data.streamed import Shard as Shard
    from quantdrift.data.streamed import StreamedDataset as StreamedDataset
    from quantdrift.data.streamed import Workers as Workers
    from quantdrift.data.streamed import document_of as document_of
    from quantdrift.data.streamed import is_url as is_url
    from quantdrift.data.streamed import json_documents as json_documents
    from quantdrift.evidence.record import Evidence as Evidence
    from quantdrift.finished.contents import FinishedRun as FinishedRun
    from quantdrift.finished.contents import Part as Part
    from quantdrift.finished.contents import digest as digest
    from quantdrift.finished.formats import Format as Format
    from quantdrift.finished.texts import read_texts as read_texts
    from quantdrift.kinds.encoder import EncoderKind as EncoderKind
    from quantdrift.kinds.quantizer import Quantizer as Quantizer
    from quantdrift.kinds.stage import Advice as Advice
    from quantdrift.kinds.stage import Option as Option
    from quantdrift.kinds.stage import Stage as Stage
    from quantdrift.metrics import metric as metric
    from quantdrift.models.model import EmbeddingModel as EmbeddingModel
    from quantdrift.models.server_client import OneInputError as OneInputError
    from quantdrift.runs.folder import Run as Run
    from quantdrift.runs.folder import find_runs as find_runs
    from quantdrift.scheme import Scheme as Scheme
    from quantdrift.scoring.indexes import DEFAULT_LIMIT as DEFAULT_LIMIT
    from quantdrift.scoring.indexes import Found as Found
    from quantdrift.scoring.indexes import SearchIndex as SearchIndex
    from quantdrift.scoring.similarity import Similarity as Similarity
    from quantdrift.scoring.stages import VectorStage as VectorStage
    from quantdrift.scoring.stored import Stored as Stored
    from quantdrift.show.output import Output as Output
    from quantdrift.show.tables import Grid as Grid
    from quantdrift.statistics.estimates import Estimate as Estimate
    from quantdrift.statistics.estimates import as_json as as_json
    from quantdrift.statistics.kinds import estimate as estimate
    from quantdrift.statistics.kinds import paired_difference as paired_difference
    from quantdrift.statistics.paired import mcnemar_exact as mcnemar_exact
    from quantdrift.statistics.verdicts import holm as holm

_NAMES = {
    "asking.deployed": "find_model",
    "asking.saving": "make_candidate",
    "base.display": "clean in_one_line note shown",
    "base.errors": "DataError QuantDriftError RunError ServerError UnsupportedError",
    "base.extras": "extras_named refuse_missing",
    "base.keys": "KeyNames find_key is_loopback without_key",
    "base.logs": "captured_logs",
    "base.progress": "Progress progress_bars",
    "base.records": "Record read_json validated",
    "base.registry": "Package Registry",
    "base.text": "with_interval",
    "builtin.index.engine": "Engine Order",
    "candidate.pair": "QuantizedPair",
    "candidate.quantized": "LayerQuantizer Moments QuantizedWeight group_absmax spread",
    "candidate.refusals": "read_candidate",
    "candidate.stages": "ModelStage StagedModel",
    "cli": "Command Interrupted",
    "cli.measuring": "output_folder",
    "cli.options": "OnCorpus OnModel argument flag option prints",
    "data.retrieval": "RetrievalDataset raw_lines read_beir_folder read_lines",
    "data.sentences": "SENTENCES",
    "data.streamed": "DataKind Document Shard StreamedDataset Workers document_of is_url json_documents",
    "evidence.record": "Evidence",
    "finished.contents": "FinishedRun Part digest",
    "finished.formats": "Format",
    "finished.texts": "read_texts",
    "kinds.encoder": "EncoderKind",
    "kinds.quantizer": "Quantizer",
    "kinds.stage": "Advice Option Stage",
    "metrics": "metric",
    "models.model": "EmbeddingModel",
    "models.server_client": "OneInputError",
    "runs.folder": "Run find_runs",
    "scheme": "Scheme",
    "scoring.indexes": "DEFAULT_LIMIT Found SearchIndex",
    "scoring.similarity": "Similarity",
    "scoring.stages": "VectorStage",
    "scoring.stored": "Stored",
    "show.output": "Output",
    "show.tables": "Grid",
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
