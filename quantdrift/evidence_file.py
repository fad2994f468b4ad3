"""Evidence as a Parquet file that pandas, polars or DuckDB read as it is.

One row per input. Beside what `Evidence` holds, the file repeats the scalars most looked at (flip,
gap, epsilon, separation, S), so that a query on the file needs no code of ours; they are written
from the same functions the metrics use, and ignored when reading.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.errors import RunError
from quantdrift.evidence import Confidence, Deltas, Evidence, Judgements, Noise, Top

__all__ = ["FORMAT_VERSION", "read_evidence", "write_evidence"]

FORMAT_VERSION = 1
_BOUNDS_VERSION = 2
"""Of evidence whose deltas are not all known: what read only version 1 would take it for exact."""
_VERSION_KEY = b"quantdrift_evidence_version"
_DELTAS_KEY = b"quantdrift_deltas"
_ARMS = ("reference", "candidate")


def write_evidence(evidence: Evidence, path: Path) -> None:
    """Write evidence to one Parquet file.

    Args:
        evidence: what to write.
        path: file to write; overwritten.
    """
    columns: dict[str, Any] = {
        "input_id": pa.array([str(name) for name in evidence.input_ids], pa.string()),
        "flip": pa.array(perturbation.flips(evidence)),
        "gap": _nullable(perturbation.gap(evidence)),
        "candidate_gap": _nullable(perturbation.candidate_gap(evidence)),
        "epsilon": _nullable(perturbation.epsilon(evidence)),
        "separation": _nullable(perturbation.separation_ratio(evidence)),
        "S": _nullable(perturbation.perturbation_s(evidence)),
        "n_items": pa.array(evidence.n_items),
        "delta_min": pa.array(evidence.delta_min),
        "delta_max": pa.array(evidence.delta_max),
    }
    for arm, top in zip(_ARMS, (evidence.reference_top, evidence.candidate_top), strict=True):
        kept = top.items >= 0
        offsets = np.concatenate([[0], kept.sum(axis=1).cumsum()]).astype(np.int32)
        columns[f"{arm}_items"] = _lists(offsets, _names(evidence, top.items[kept]))
        columns[f"{arm}_items_reference_scores"] = _lists(
            offsets, pa.array(top.reference_scores[kept])
        )
        columns[f"{arm}_items_candidate_scores"] = _lists(
            offsets, pa.array(top.candidate_scores[kept])
        )
    if evidence.judgements is not None:
        offsets = evidence.judgements.offsets.astype(np.int32)
        columns["judged_items"] = _lists(offsets, _names(evidence, evidence.judgements.items))
        columns["judged_grades"] = _lists(offsets, pa.array(evidence.judgements.grades))
    if evidence.noise is not None:
        columns["noise_flip"] = pa.array(evidence.noise.flips)
        columns["noise_epsilon"] = pa.array(evidence.noise.epsilon)
    if evidence.confidence is not None:
        columns["candidate_msp"] = pa.array(evidence.confidence.msp)
        columns["candidate_entropy"] = pa.array(evidence.confidence.entropy)
    version = FORMAT_VERSION if evidence.exact else _BOUNDS_VERSION
    metadata = {_VERSION_KEY: str(version).encode(), _DELTAS_KEY: evidence.deltas.encode()}
    table = pa.table(columns).replace_schema_metadata(metadata)
    pq.write_table(table, path, compression="zstd")


def read_evidence(path: Path) -> Evidence:
    """Read evidence that `write_evidence` wrote.

    Args:
        path: the Parquet file.

    Raises:
        RunError: there is no such file, it is damaged, or another version wrote it.
    """
    try:
        # read_table goes through pyarrow.dataset, which takes longer to import than a run to read
        with pq.ParquetFile(path) as file:
            table = file.read()
    except FileNotFoundError:
        raise RunError(f"expected evidence in {path}; there is no such file") from None
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path} is not a readable Parquet file: {error}") from error
    version = (table.schema.metadata or {}).get(_VERSION_KEY)
    if version not in {str(known).encode() for known in (FORMAT_VERSION, _BOUNDS_VERSION)}:
        found = "no version" if version is None else f"version {version.decode()}"
        raise RunError(
            f"{path} holds evidence of {found}; this quantdrift reads versions up to "
            f"{_BOUNDS_VERSION}. "
            "Read it with the quantdrift that wrote it, or make the run again."
        )
    try:
        return _evidence(table)
    except (KeyError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        raise RunError(f"{path} does not hold evidence as its version has it: {error}") from error


def _evidence(table: pa.Table) -> Evidence:
    vocabulary = _Vocabulary()
    tops = [_read_top(table, arm, vocabulary) for arm in _ARMS]
    judgements = None
    if "judged_items" in table.column_names:
        items = table["judged_items"].combine_chunks()
        judgements = Judgements(
            offsets=_offsets(items),
            items=vocabulary.indices(items.flatten()),
            grades=_numpy(table["judged_grades"].combine_chunks().flatten(), np.int64),
        )
    noise = None
    if "noise_flip" in table.column_names:
        noise = Noise(
            flips=_numpy(table["noise_flip"], np.bool_),
            epsilon=_numpy(table["noise_epsilon"], np.float32),
        )
    confidence = None
    if "candidate_msp" in table.column_names:
        confidence = Confidence(
            msp=_numpy(table["candidate_msp"], np.float64),
            entropy=_numpy(table["candidate_entropy"], np.float64),
        )
    return Evidence(
        input_ids=np.array(table["input_id"].to_pylist(), dtype=object),
        item_ids=vocabulary.names(),
        reference_top=tops[0],
        candidate_top=tops[1],
        delta_min=_numpy(table["delta_min"], np.float32),
        delta_max=_numpy(table["delta_max"], np.float32),
        n_items=_numpy(table["n_items"], np.int64),
        judgements=judgements,
        noise=noise,
        confidence=confidence,
        deltas=_deltas(table),
    )


def _deltas(table: pa.Table) -> Deltas:
    name = (table.schema.metadata or {}).get(_DELTAS_KEY, b"all").decode()
    if name not in get_args(Deltas):
        raise ValueError(f"deltas of {name!r}")
    return cast(Deltas, name)


def _nullable(values: NDArray[np.float64]) -> pa.Array:
    return pa.array(values, mask=np.isnan(values))


def _lists(offsets: NDArray[np.int32], values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _names(evidence: Evidence, indices: NDArray[np.int64]) -> pa.Array:
    names = pa.array([str(name) for name in evidence.item_ids], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), names).cast(pa.string())


class _Vocabulary:
    """Item names to indices, one numbering for all columns."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def indices(self, column: pa.Array) -> NDArray[np.int64]:
        encoded = column.dictionary_encode()
        numbers = np.array(
            [
                self._index.setdefault(name, len(self._index))
                for name in encoded.dictionary.to_pylist()
            ],
            dtype=np.int64,
        )
        return numbers[_numpy(encoded.indices, np.int64)] if len(column) else np.empty(0, np.int64)

    def names(self) -> NDArray[Any]:
        return np.array(list(self._index), dtype=object)


def _read_top(table: pa.Table, arm: str, vocabulary: _Vocabulary) -> Top:
    lists = table[f"{arm}_items"].combine_chunks()
    lengths = np.diff(_offsets(lists))
    shape = (len(lengths), int(lengths.max(initial=1)))
    kept = np.arange(shape[1])[None, :] < lengths[:, None]
    items = np.full(shape, -1, dtype=np.int64)
    items[kept] = vocabulary.indices(lists.flatten())
    scores = []
    for which in _ARMS:
        values = np.full(shape, np.nan, dtype=np.float32)
        column = table[f"{arm}_items_{which}_scores"].combine_chunks()
        values[kept] = _numpy(column.flatten(), np.float32)
        scores.append(values)
    return Top(items=items, reference_scores=scores[0], candidate_scores=scores[1])


def _offsets(lists: pa.ListArray) -> NDArray[np.int64]:
    lengths = _numpy(lists.value_lengths(), np.int64)
    return np.concatenate([[0], lengths.cumsum()]).astype(np.int64)


def _numpy(column: Any, dtype: Any) -> NDArray[Any]:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count:
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=dtype)
    # unlike to_numpy, its buffer does not import pandas where it is installed, half a second
    held, here = column.buffers()[1], slice(column.offset, column.offset + len(column))
    if held is None:
        return np.empty(0, dtype=dtype)
    if pa.types.is_boolean(column.type):
        bits = np.unpackbits(np.frombuffer(held, dtype=np.uint8), bitorder="little")
        return bits[here].astype(dtype)
    return np.frombuffer(held, dtype=column.type.to_pandas_dtype())[here].astype(dtype)
