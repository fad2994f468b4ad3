"""Evidence as a Parquet file that pandas, polars or DuckDB can read directly.

One row per input. Beside the fields of `Evidence`, the file has the figures that users look at most (flip, gap,
epsilon, separation, S), so that a query needs no code of ours. They come from the functions that the metrics use, and
are ignored when the file is read.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from quantdrift.base.errors import RunError
from quantdrift.base.records import read_bytes
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Confidence, Deltas, Evidence, Judgements, Noise, Top

FORMAT_VERSION = 1
_BOUNDS_VERSION = 2
"""The version of evidence whose deltas are not all known, which a reader of version 1 would treat as exact."""
_VERSION_KEY = b"quantdrift_evidence_version"
_DELTAS_KEY = b"quantdrift_deltas"
_ARMS = ("reference", "candidate")
_EXHAUSTIVE = "exhaustive"
"""The prefix for the list of exhaustive search, beside that of an approximate index."""
_SCORES = tuple(f"_{arm}_scores" for arm in _ARMS)
_TYPES = {
    "input_id": pa.string(),
    "n_items": pa.int64(),
    "delta_min": pa.float32(),
    "delta_max": pa.float32(),
    **{f"{arm}_items": pa.list_(pa.string()) for arm in (*_ARMS, _EXHAUSTIVE)},
    **{f"{arm}_items{end}": pa.list_(pa.float32()) for arm in (*_ARMS, _EXHAUSTIVE) for end in _SCORES},
    "judged_items": pa.list_(pa.string()),
    "judged_grades": pa.list_(pa.int64()),
    "noise_flip": pa.bool_(),
    "noise_epsilon": pa.float32(),
    "candidate_msp": pa.float64(),
    "candidate_entropy": pa.float64(),
}
"""The columns that are read."""
_PLAIN = ("n_items", "delta_min", "delta_max")
"""The columns that are fields of `Evidence`."""
_PARTS = {
    "noise": (Noise, {"flips": "noise_flip", "epsilon": "noise_epsilon"}),
    "confidence": (Confidence, {"msp": "candidate_msp", "entropy": "candidate_entropy"}),
}
"""The optional parts of evidence, and the columns of their fields."""
_NAMED = tuple(name for name, held in _TYPES.items() if held == pa.list_(pa.string()))
"""The columns of names. Each name is in memory once, however often it stands in the file."""
_LISTED = pa.list_(pa.dictionary(pa.int32(), pa.string()))
_ROWS_PER_BYTE, _VALUES_PER_BYTE = 100, 10_000
"""Most rows and values for each byte of a file. Input ids are unique, so ours have less than one row per byte; but a
thousand equal values compress well."""
_SMALL = 1 << 20
"""Most bytes of a file that is read in one thread."""
_MOST_PLACES = 2**31 - 1
"""Most values in the lists of one column, as their offsets have 32 bits."""


def write_evidence(evidence: Evidence, path: Path) -> None:
    """Write evidence to one Parquet file."""
    _check(evidence)
    columns: dict[str, Any] = {
        "input_id": pa.array([str(name) for name in evidence.input_ids], pa.string()),
        **{name: pa.array(figure(evidence), from_pandas=True) for name, figure in perturbation.FIGURES.items()},
        **{name: pa.array(getattr(evidence, name), _TYPES[name]) for name in _PLAIN},
    }
    tops = {"reference": evidence.reference_top, "candidate": evidence.candidate_top}
    if evidence.exhaustive_top is not None:
        tops[_EXHAUSTIVE] = evidence.exhaustive_top
    for arm, top in tops.items():
        kept = top.items >= 0
        offsets = np.concatenate([[0], kept.sum(axis=1).cumsum()]).astype(np.int32)
        columns[f"{arm}_items"] = _lists(offsets, _names(evidence, top.items[kept]))
        for which in _ARMS:
            scores = pa.array(getattr(top, f"{which}_scores")[kept], pa.float32())
            columns[f"{arm}_items_{which}_scores"] = _lists(offsets, scores)
    if evidence.judgements is not None:
        offsets = evidence.judgements.offsets.astype(np.int32)
        columns["judged_items"] = _lists(offsets, _names(evidence, evidence.judgements.items))
        grades = pa.array(evidence.judgements.grades, pa.int64())
        columns["judged_grades"] = _lists(offsets, grades)
    for part, (_, names) in _PARTS.items():
        if (values := getattr(evidence, part)) is not None:
            columns |= {name: pa.array(getattr(values, field), _TYPES[name]) for field, name in names.items()}
    version = FORMAT_VERSION if evidence.exact else _BOUNDS_VERSION
    metadata = {_VERSION_KEY: str(version).encode(), _DELTAS_KEY: evidence.deltas.encode()}
    table = pa.table(columns).replace_schema_metadata(metadata)
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)


def read_evidence(path: Path, *, digest: str | None = None) -> Evidence:
    """Read evidence that `write_evidence` wrote."""
    try:
        table = _table(path, read_bytes(path, digest=digest))
    except FileNotFoundError:
        raise RunError(
            f"expected evidence in {path}; there is none. Copy the whole run folder again, or make the run again"
        ) from None
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise RunError(f"{path} is not a readable Parquet file: {error}") from error
    try:
        return _check(_evidence(table))
    except (KeyError, ValueError, MemoryError, RunError, pa.ArrowException) as error:
        raise RunError(f"{path} does not hold evidence of its version: {error}") from error


def _table(path: Path, content: bytes) -> pa.Table:
    size = len(content)
    # read_table goes through pyarrow.dataset, which takes longer to import than a run to read
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        version = (file.metadata.metadata or {}).get(_VERSION_KEY)
        if version not in {str(supported).encode() for supported in (FORMAT_VERSION, _BOUNDS_VERSION)}:
            raise RunError(
                f"{path} holds evidence of another version; this quantdrift reads versions up to {_BOUNDS_VERSION}. "
                "Make the run again, or, if a newer quantdrift wrote it: pip install --upgrade quantdrift."
            )
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        values = [group.column(n).num_values for group in groups for n in range(group.num_columns)]
        if file.metadata.num_rows > _ROWS_PER_BYTE * size or sum(values) > _VALUES_PER_BYTE * size:
            raise ValueError(f"{size:,} bytes cannot hold the evidence of {file.metadata.num_rows:,} inputs")
        paths = [file.schema.column(number).path for number in range(len(file.schema))]
    try:
        return _columns(content, [path for path in paths if path.partition(".")[0] in _NAMED])
    except pa.ArrowNotImplementedError:  # the dictionary of a column is not in one place
        return _columns(content, [])


def _columns(content: bytes, listed: Sequence[str]) -> pa.Table:
    """Read the columns of a file, those in `listed` as indices into a dictionary of names."""
    whole = pa.BufferReader(content)
    with pq.ParquetFile(whole, read_dictionary=listed, page_checksum_verification=True) as file:
        # pyarrow's threads may outlive a process that ends at once, and abort it; a small file is read as fast without
        return file.read(columns=[*_TYPES], use_threads=len(content) > _SMALL)


def _evidence(table: pa.Table) -> Evidence:
    deltas = (table.schema.metadata or {}).get(_DELTAS_KEY, b"all").decode()
    if deltas not in get_args(Deltas):
        raise ValueError(f"deltas of {deltas!r}")
    vocabulary: dict[str, int] = {}
    arms = (*_ARMS, *([_EXHAUSTIVE] if f"{_EXHAUSTIVE}_items" in table.column_names else []))
    held = {arm: [_lists_of(table, f"{arm}_items{end}") for end in ("", *_SCORES)] for arm in arms}
    lengths = {arm: np.diff(lists[0][0]) for arm, lists in held.items()}
    shape = (table.num_rows, max(int(of.max(initial=1)) for of in lengths.values()))
    if shape[0] * shape[1] > _MOST_PLACES:
        raise ValueError(f"{shape[0]:,} inputs with lists of {shape[1]:,} items are too many")
    tops = []
    for arm, ((offsets, names), *scores) in held.items():
        if not all(np.array_equal(own_offsets, offsets) for own_offsets, _ in scores):
            raise ValueError(f"the items of an input and their scores differ in number ({arm})")
        items = _filled(_indices(names, vocabulary), lengths[arm], shape, -1)
        first, second = (_filled(_numpy(values), lengths[arm], shape, np.float32(np.nan)) for _, values in scores)
        tops.append(Top(items=items, reference_scores=first, candidate_scores=second))
    judgements = None
    if "judged_items" in table.column_names:
        offsets, names = _lists_of(table, "judged_items")
        own_offsets, grades = _lists_of(table, "judged_grades")
        if not np.array_equal(own_offsets, offsets):
            raise ValueError("the judged items of an input and their grades differ in number")
        judgements = Judgements(offsets=offsets, items=_indices(names, vocabulary), grades=_numpy(grades))
    plain: dict[str, Any] = {name: _values(table, name) for name in _PLAIN}
    parts: dict[str, Any] = {
        part: kind(**{field: _values(table, name) for field, name in names.items()})
        for part, (kind, names) in _PARTS.items()
        if any(name in table.column_names for name in names.values())
    }
    return Evidence(
        input_ids=np.array(_column(table, "input_id").to_pylist(), dtype=object),
        item_ids=np.array(list(vocabulary), dtype=object),
        reference_top=tops[0],
        candidate_top=tops[1],
        **plain,
        judgements=judgements,
        **parts,
        exhaustive_top=tops[2] if len(tops) > len(_ARMS) else None,
        deltas=cast(Deltas, deltas),
    )


def _check(evidence: Evidence) -> Evidence:
    """Refuse evidence that no measurement can give."""
    for fault in _faults(evidence):
        raise RunError(f"expected evidence of two arms; {fault}")
    return evidence


def _faults(evidence: Evidence) -> Iterator[str]:
    tops, scored = [evidence.reference_top, evidence.candidate_top], evidence.n_items > 0
    tops += [] if evidence.exhaustive_top is None else [evidence.exhaustive_top]
    shape, n_names = tops[0].items.shape, len(evidence.item_ids)
    for top in tops:
        arrays = (top.items, top.reference_scores, top.candidate_scores)
        if len(shape) != 2 or shape[1] < 1 or any(part.shape != shape for part in arrays):  # noqa: PLR2004 -- inputs and ranks
            yield "its ranked items and their scores differ in shape"
        if not ((top.items >= -1) & (top.items < n_names)).all():
            yield "a ranked item is not one of its items"
        if ((top.items >= 0).sum(axis=1) > evidence.n_items).any():
            yield "an input has more ranked items than items"
    for arm, top in zip((*_ARMS, "candidate"), tops, strict=False):  # the third, if any, is also the candidate's
        # an item of one truncated list need not have a score in the other arm
        for which in {"all": _ARMS, "listed": (arm,), "none": ()}[evidence.deltas]:
            if not (np.isfinite(getattr(top, f"{which}_scores")) | (top.items < 0)).all():
                yield "a score is not finite"
    if evidence.deltas != "none":
        low, high = evidence.delta_min[scored], evidence.delta_max[scored]
        if not (np.isfinite(low) & np.isfinite(high) & (low <= high)).all():
            yield "the least change of a score is above the greatest, or one is not finite"
    if (sure := evidence.confidence) is not None and not (
        np.isfinite(sure.msp).all() and np.isfinite(sure.entropy).all()
    ):
        yield "a confidence is not finite"
    if (judged := evidence.judgements) is not None and not (
        len(judged.items) == len(judged.grades) == judged.offsets[-1]
        and ((judged.items >= 0) & (judged.items < n_names)).all()
    ):
        yield "a judged item is not one of its items, or has no grade"


def _column(table: pa.Table, name: str) -> pa.Array:
    """Return a required column; refuse another type, and nulls."""
    column = table[name].combine_chunks()
    wanted = _TYPES[name]
    if not (column.type.equals(wanted) or (name in _NAMED and column.type.equals(_LISTED))):
        raise ValueError(f"{name} holds {column.type}; expected {wanted}")
    if isinstance(column, pa.ChunkedArray) or column.null_count:
        raise ValueError(f"{name} holds a null, or too much")
    return column


def _values(table: pa.Table, name: str) -> NDArray[Any]:
    return _numpy(_column(table, name))


def _lists_of(table: pa.Table, name: str) -> tuple[NDArray[np.int64], pa.Array]:
    """A column of lists, as the offset of each list and the values of all."""
    column = _column(table, name)
    # flatten and value_lengths would import pyarrow.compute
    offsets = _view(column.offsets).astype(np.int64)
    values = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if values.null_count:
        raise ValueError(f"{name} holds a null in a list")
    return offsets - offsets[0], values


def _filled(values: NDArray[Any], lengths: NDArray[np.int64], shape: tuple[int, int], end: Any) -> NDArray[Any]:
    """Lists of these lengths as the rows of an array, padded with `end`."""
    if len(values) == shape[0] * shape[1]:
        return values.reshape(shape)
    rows = np.full(shape, end, dtype=values.dtype)
    rows[np.arange(shape[1])[None, :] < lengths[:, None]] = values
    return rows


def _lists(offsets: NDArray[np.int32], values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _names(evidence: Evidence, indices: NDArray[np.int64]) -> pa.Array:
    names = pa.array([str(name) for name in evidence.item_ids], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), names).cast(pa.string())


def _indices(column: pa.Array, vocabulary: dict[str, int]) -> NDArray[np.int64]:
    """Replace item names by indices into a vocabulary that all columns share."""
    listed = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    numbers = [vocabulary.setdefault(name, len(vocabulary)) for name in listed.dictionary.to_pylist()]
    return np.array(numbers, dtype=np.int64)[_view(listed.indices)] if len(column) else np.empty(0, np.int64)


def _numpy(column: pa.Array) -> NDArray[Any]:
    """A copy of the values of an array without nulls."""
    return _view(column).copy()


def _view(column: pa.Array) -> NDArray[Any]:
    """A view of the values of an array without nulls."""
    # unlike to_numpy, this does not import pandas if that is installed, which takes half a second
    held, here = column.buffers()[1], slice(column.offset, column.offset + len(column))
    if pa.types.is_boolean(column.type):
        bits = np.unpackbits(np.frombuffer(held or b"", dtype=np.uint8), bitorder="little")
        return bits[here].astype(np.bool_)
    return np.frombuffer(held or b"", dtype=column.type.to_pandas_dtype())[here]
