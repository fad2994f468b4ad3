"""Approximate indexes of faiss and usearch: built over what is stored, searched, and searched exhaustively as well."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.extras import extras_named, version_of
from quantdrift.engine.scoring.precision import BITS, Stored, packed
from quantdrift.engine.scoring.streamed import Similarity

_LARGE = 1 << 28
"""Numbers in an index beyond which its size is not told: it would be copied for that."""
_ADVISED = 39
"""Vectors for each centroid that faiss wants at least to train."""


class Index:
    """An index over the documents of one arm.

    Attributes:
        lossless: whether it holds the documents as they are stored, so that only its search loses anything.
        notes: what a run should say, one sentence each.
    """

    lossless = True
    notes: tuple[str, ...] = ()

    def search(self, queries: Tensor, k: int) -> NDArray[np.int64]:
        """Positions [n_queries, k] of documents, best first; -1 where it found fewer."""
        raise NotImplementedError

    def scores(self, queries: Tensor) -> Tensor:
        """Scores float32 [n_queries, n_docs] of all documents by the codes that it holds; larger is nearer.

        Never asked of an index that is lossless.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Describe the index for run.json."""
        raise NotImplementedError


# --- faiss ----------------------------------------------------------------------------------------


class Faiss(Index):
    """An index that faiss' index_factory makes; UnsupportedError where it cannot be made of these documents."""

    def __init__(
        self, name: str, stored: Stored, similarity: Similarity, settings: str | None, seed: int | None
    ) -> None:
        with extras_named(needed_for=f"+index={name}"):
            import faiss  # noqa: PLC0415 -- an optional extra
        self._faiss, self._similarity = faiss, similarity
        documents = stored.documents.numpy()
        n, dim = documents.shape
        metric = faiss.METRIC_L2 if similarity is Similarity.EUCLIDEAN else faiss.METRIC_INNER_PRODUCT
        with self._alone(f"+index={name} over {n:,} documents of {dim} dimensions"):
            index = faiss.index_factory(dim, name, metric)
            self.notes = _told(_parts(faiss, index)[1], n, name)
            for part in _inside(faiss, index):
                _seeded(part, seed, settings)
            index.train(documents)
            index.add(documents)
        self._index, self.n_docs, self._dim = index, n, dim
        # training may have put other objects in place
        self._chain, self._exact = _parts(faiss, index)
        plain = (faiss.IndexFlat, faiss.IndexIVFFlat)
        self.lossless = not self._chain and isinstance(self._exact, plain)
        self._told = {"name": name, "search": settings}
        if settings is not None:
            with self._alone(f"+search={settings} of +index={name}"):
                faiss.ParameterSpace().set_index_parameters(index, settings)  # type: ignore[arg-type]  # its stubs are wrong

    def search(self, queries: Tensor, k: int) -> NDArray[np.int64]:
        """Positions [n_queries, k] of documents, best first; -1 where it found fewer."""
        with self._alone("the search"):
            return np.asarray(self._index.search(queries.numpy(), min(k, self.n_docs))[1], dtype=np.int64)

    def scores(self, queries: Tensor) -> Tensor:
        """Scores of all documents, by exhaustive search of the same codes."""
        asked = queries.numpy()
        for transform in self._chain:
            asked = transform.apply(asked)
        with self._alone("the exhaustive search"), _all_lists(self._faiss, self._exact):
            values, positions = self._exact.search(asked, self.n_docs)
        if (positions < 0).any():
            raise UnsupportedError(
                f"{type(self._exact).__name__} does not score every document, so that the loss of its codes cannot be "
                "told from that of its search; expected another +index="
            )
        scores = np.empty(values.shape, dtype=np.float32)
        np.put_along_axis(scores, positions, values.astype(np.float32), axis=1)
        similarities = torch.from_numpy(scores)
        if self._exact.metric_type == self._faiss.METRIC_INNER_PRODUCT:
            return similarities
        distance = similarities.clamp_min(0)
        return -distance.sqrt() if self._similarity is Similarity.EUCLIDEAN else -distance / 2

    def describe(self) -> dict[str, Any]:
        """Describe the index for run.json."""
        size = None
        if self.n_docs * self._dim <= _LARGE:
            size = len(self._faiss.serialize_index(self._index))
        return {**self._told, "library": f"faiss {version_of('faiss-cpu') or self._faiss.__version__}", "bytes": size}

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Inside, one thread computes, and what faiss says is one line."""
        before = self._faiss.omp_get_max_threads()
        self._faiss.omp_set_num_threads(1)
        try:
            yield
        except (RuntimeError, AssertionError, ValueError) as error:
            reason = re.sub(r"^Error in .*? at \S+:\d+: (Error: '.*?' failed: )?", "", " ".join(str(error).split()))
            raise UnsupportedError(f"faiss refuses {what}: {reason}") from error
        finally:
            self._faiss.omp_set_num_threads(before)


def _inside(faiss: Any, index: Any) -> Iterator[Any]:
    """An index, and those that it is made of."""
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index", "refine_index", "storage", "quantizer"):
        if (part := getattr(index, name, None)) is not None and isinstance(part, faiss.Index):
            yield from _inside(faiss, part)


def _parts(faiss: Any, index: Any) -> tuple[list[Any], Any]:
    """Return the transforms of a query, and the index behind them whose exhaustive search is exact over the codes."""
    chain: list[Any] = []
    index = faiss.downcast_index(index)
    while True:
        if isinstance(index, faiss.IndexPreTransform):
            chain += [faiss.downcast_VectorTransform(index.chain.at(n)) for n in range(index.chain.size())]
            index = faiss.downcast_index(index.index)
        elif isinstance(index, faiss.IndexRefine):
            index = faiss.downcast_index(index.refine_index)
        elif isinstance(index, faiss.IndexHNSW | faiss.IndexNSG | faiss.IndexNNDescent):
            index = faiss.downcast_index(index.storage)
        elif isinstance(index, faiss.IndexIDMap):
            index = faiss.downcast_index(index.index)
        else:
            return chain, index


def _seeded(index: Any, seed: int | None, settings: str | None) -> None:
    """Let an index train on few vectors without a word on standard error (a note says it), and not longer than needed.

    Polysemous training renumbers the centroids of a product quantizer, for a search that compares codes by their bits
    (+search=ht=N). It takes a second or two for each part of a vector, and no other search finds anything else by it.
    """
    if hasattr(index, "do_polysemous_training") and "ht=" not in (settings or ""):
        index.do_polysemous_training = False
    for cluster in (getattr(index, "cp", None), getattr(getattr(index, "pq", None), "cp", None)):
        if cluster is not None:
            cluster.min_points_per_centroid = 1
            if seed is not None:
                cluster.seed = seed
    if seed is not None and hasattr(index, "hnsw"):
        index.hnsw.rng.__init__(seed)


def _told(index: Any, n: int, name: str) -> tuple[str, ...]:
    """Whether there are fewer vectors than faiss advises to train on."""
    centroids = max(getattr(index, "nlist", 0), getattr(getattr(index, "pq", None), "ksub", 0))
    wanted = _ADVISED * centroids
    if n >= wanted:
        return ()
    return (f"+index={name} was trained on {n:,} documents; faiss advises {wanted:,} for its {centroids} centroids",)


@contextmanager
def _all_lists(faiss: Any, index: Any) -> Iterator[None]:
    """Inside, an inverted file looks into all of its lists."""
    if not isinstance(index, faiss.IndexIVF):
        yield
        return
    coarse = faiss.downcast_index(index.quantizer)
    graph = getattr(coarse, "hnsw", None)
    before, breadth = index.nprobe, None if graph is None else graph.efSearch
    index.nprobe = index.nlist
    if graph is not None:
        graph.efSearch = index.nlist
    try:
        yield
    finally:
        index.nprobe = before
        if graph is not None:
            graph.efSearch = breadth


# --- usearch --------------------------------------------------------------------------------------

_KINDS = {None: "f32", "fp16": "f16", "bf16": "bf16", "int8": "i8", "binary": "b1", "ubinary": "b1"}
"""Precision to usearch's name of it."""
_SETTING = re.compile(r"(expansion|expansion_add)=([0-9]+)")


class Usearch(Index):
    """A graph of usearch, over the documents as they are stored."""

    def __init__(self, name: str, stored: Stored, similarity: Similarity, settings: str | None) -> None:
        match = re.fullmatch(r"usearch([1-9][0-9]{0,2})?", name, re.IGNORECASE)
        parsed = [_SETTING.fullmatch(setting) for setting in settings.split(",")] if settings else []
        if match is None or not all(parsed):
            raise UnsupportedError(
                "usearch is written +index=usearch, or with its connectivity, +index=usearch32, and set by "
                f"+search=expansion=64 or expansion_add=128; got +index={name}"
                + (f"+search={settings}" if settings else "")
            )
        if stored.precision not in _KINDS:
            raise UnsupportedError(f"+index=usearch holds no {stored.precision}; expected +emb=int8, or faiss")
        with extras_named(needed_for=f"+index={name}"):
            from usearch.index import Index as Graph  # noqa: PLC0415 -- an optional extra
        self._told = {"name": name, "search": settings}
        given = {match_[1]: int(match_[2]) for match_ in parsed if match_}
        self._bits = stored.precision in BITS
        self._bytes = stored.precision == "int8"
        similar = "l2sq" if similarity is Similarity.EUCLIDEAN else "ip"
        self._graph: Any = Graph(
            ndim=int(stored.documents.shape[1]),
            metric="hamming" if self._bits else similar,
            dtype=_KINDS[stored.precision],
            connectivity=int(match[1]) if match[1] else None,
            expansion_add=given.get("expansion_add"),
            expansion_search=given.get("expansion"),
        )
        self._graph.add(np.arange(len(stored.documents)), self._of(stored.documents), threads=1)

    def _of(self, vectors: Tensor) -> NDArray[Any]:
        """Vectors as usearch takes them."""
        if self._bits:
            return packed(vectors)
        return vectors.numpy().astype(np.int8) if self._bytes else vectors.numpy()

    def search(self, queries: Tensor, k: int) -> NDArray[np.int64]:
        """Positions [n_queries, k] of documents, best first; -1 where it found fewer."""
        matches = self._graph.search(self._of(queries), min(k, len(self._graph)), threads=1)
        positions = np.atleast_2d(np.asarray(matches.keys)).astype(np.int64)
        counts = np.reshape(getattr(matches, "counts", positions.shape[1]), (-1, 1))
        return np.where(np.arange(positions.shape[1]) < counts, positions, -1)

    def describe(self) -> dict[str, Any]:
        """Describe the index for run.json."""
        return {
            **self._told,
            "library": f"usearch {version_of('usearch')}",
            "bytes": int(self._graph.serialized_length),
        }
