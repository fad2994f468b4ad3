"""The contract with other packages: all names that a part needs. docs/guides/extending.md has an example of each.

A name loads its module when it is first used, so importing this module is cheap; only the classes that compute load
torch.
"""

import ast
import inspect
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # "as" tells type checkers that these names are public here
    from quantdrift.asking.deployed import find_model as find_model
    from quantdrift.asking.saving import make_candidate as make_candidate
    from quantdrift.base.display import clean as clean, in_one_line as in_one_line, note as note, shown as shown
    from quantdrift.base.errors import (
        DataError as DataError,
        QuantDriftError as QuantDriftError,
        RunError as RunError,
        ServerError as ServerError,
        UnsupportedError as UnsupportedError,
    )
    from quantdrift.base.extras import extras_named as extras_named, refuse_missing as refuse_missing
    from quantdrift.base.keys import is_loopback as is_loopback
    from quantdrift.base.logs import captured_logs as captured_logs
    from quantdrift.base.progress import Progress as Progress, progress_bars as progress_bars
    from quantdrift.base.records import Record as Record, read_json as read_json, validated as validated
    from quantdrift.base.registry import Package as Package, Registry as Registry
    from quantdrift.base.text import with_interval as with_interval
    from quantdrift.builtin.index.engine import Engine as Engine, Order as Order
    from quantdrift.candidate.pair import QuantizedPair as QuantizedPair
    from quantdrift.candidate.quantized import (
        LayerQuantizer as LayerQuantizer,
        Moments as Moments,
        QuantizedWeight as QuantizedWeight,
        group_absmax as group_absmax,
        spread as spread,
    )
    from quantdrift.candidate.refusals import read_candidate as read_candidate
    from quantdrift.candidate.stages import ModelStage as ModelStage, StagedModel as StagedModel
    from quantdrift.cli import Command as Command, Interrupted as Interrupted
    from quantdrift.cli.measuring import output_folder as output_folder
    from quantdrift.cli.options import (
        OnCorpus as OnCorpus,
        OnModel as OnModel,
        argument as argument,
        flag as flag,
        option as option,
        prints as prints,
    )
    from quantdrift.data.retrieval import (
        RetrievalDataset as RetrievalDataset,
        raw_lines as raw_lines,
        read_beir_folder as read_beir_folder,
        read_lines as read_lines,
    )
    from quantdrift.data.sentences import SENTENCES as SENTENCES
    from quantdrift.data.streamed import (
        DataKind as DataKind,
        Document as Document,
        Shard as Shard,
        StreamedDataset as StreamedDataset,
        Workers as Workers,
        document_of as document_of,
        is_url as is_url,
        json_documents as json_documents,
    )
    from quantdrift.evidence.record import Evidence as Evidence
    from quantdrift.finished.contents import FinishedRun as FinishedRun, Part as Part, digest as digest
    from quantdrift.finished.formats import Format as Format
    from quantdrift.finished.texts import read_texts as read_texts
    from quantdrift.kinds.encoder import EncoderKind as EncoderKind
    from quantdrift.kinds.quantizer import Quantizer as Quantizer
    from quantdrift.kinds.stage import Advice as Advice, Option as Option, Stage as Stage
    from quantdrift.metrics import metric as metric
    from quantdrift.models.model import EmbeddingModel as EmbeddingModel
    from quantdrift.models.server_client import OneInputError as OneInputError
    from quantdrift.runs.folder import Run as Run, find_runs as find_runs
    from quantdrift.scheme import Scheme as Scheme
    from quantdrift.scoring.indexes import DEFAULT_LIMIT as DEFAULT_LIMIT, Found as Found, SearchIndex as SearchIndex
    from quantdrift.scoring.similarity import Similarity as Similarity
    from quantdrift.scoring.stages import VectorStage as VectorStage
    from quantdrift.scoring.stored import Stored as Stored
    from quantdrift.show.output import Output as Output
    from quantdrift.show.tables import Grid as Grid
    from quantdrift.statistics.estimates import Estimate as Estimate, as_json as as_json
    from quantdrift.statistics.kinds import estimate as estimate, paired_difference as paired_difference
    from quantdrift.statistics.paired import mcnemar_exact as mcnemar_exact
    from quantdrift.statistics.verdicts import holm as holm

_MODULES = {
    alias.name: str(node.module)
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[__name__])))
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("quantdrift.")
    for alias in node.names
}
"""The module of each name, from the block above, which only type checkers run."""

__all__ = [*_MODULES]  # noqa: PLE0604 -- names of the block above


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"quantdrift.parts has no {name!r}; it has {', '.join(sorted(_MODULES))}")
    from importlib import import_module  # noqa: PLC0415 -- as `quantdrift` has it

    return getattr(import_module(_MODULES[name]), name)
