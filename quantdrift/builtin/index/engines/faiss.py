"""faiss: the indexes of its index_factory, and exhaustive search of the same codes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import UnsupportedError, nearest
from quantdrift.base.extras import version_of
from quantdrift.base.registry import Package
from quantdrift.builtin.index.engine import Engine, Order, read_numbers
from quantdrift.scoring.indexes import Found, SearchIndex

_LARGE = 1 << 28
"""Numbers in an index above which its size is not reported, as that would copy it."""
_ADVISED = 39
"""Fewest training vectors for each centroid that faiss advises."""
_LIKE = ("HNSW32", "IVF64,Flat", "IVF64,PQ16", "PQ16", "SQ8", "RaBitQ", "Flat", "OPQ16,PQ16")
_LARGEST = 1 << 30
"""Most bytes of an index beside the codes of its documents, unless these are many."""
_RANGES = {
    "OPQ": ((1, 1024), (1, 8192)),
    "PCA": ((1, 8192),),
    "RR": ((1, 8192),),
    "Pad": ((1, 8192),),
    "IVF": ((1, 1 << 20),),
    "HNSW": ((2, 256),),
    "PQ": ((1, 1024), (1, 16)),
    "RQ": ((1, 32), (1, 10)),
}
"""Ranges of the numbers of each part; beyond them faiss reads out of bounds or ends Python, without an error."""
_SEARCH = {
    "nprobe": (1, 1 << 20),
    "efSearch": (1, 1 << 16),
    "quantizer_efSearch": (1, 1 << 16),
    "k_factor_rf": (1, 1000),
    "max_codes": (1, 1 << 30),
    "ht": (0, 1 << 16),
}
_BEFORE = r"PCAW?R?\d+|OPQ\d+(?:_\d+)?|RR(?:\d+)?|L2norm|Pad\d+"
_SCALAR = "SQ(?:4|6|8|fp16|bf16)"
_CODE = rf"Flat|{_SCALAR}|PQ\d+(?:x\d+)?(?:np)?|PQ\d+x4fsr?|RQ\d+x\d+|RaBitQ"
_GRAPH = rf"HNSW(?:\d+)?(?:_{_SCALAR}|_PQ\d+(?:x\d+)?|,Flat)?"
_COARSE = r"(?:SQ[46]|(?<!O)PQ\d+(?:x\d+(?:fsr?)?)?(?:np)?|RQ\d+x\d+|RaBitQ)(?![0-9A-Za-z])"
"""Codes of less than a byte a number."""
_FACTORY = re.compile(
    rf"(?:(?:{_BEFORE}),){{,3}}(?:(?:IVF\d+(?:_HNSW\d+)?,)?(?:{_CODE})|{_GRAPH})(?:,(?:RFlat|Refine\((?:Flat|{_SCALAR})\)))?"
)
"""Factory strings that are passed to faiss: transforms, then lists and codes or a graph, then rescoring."""
_NUMBERS = re.compile(rf"({'|'.join(_RANGES)})[WR]*(\d+)(?:[x_](\d+))?")


class Faiss(SearchIndex):
    """An index that faiss' index_factory makes; UnsupportedError where it cannot be made of these documents."""

    def __init__(self, order: Order) -> None:
        import faiss

        self._faiss, self._euclidean = faiss, order.similarity == "euclidean"
        documents, name, settings = order.documents, order.name, order.search
        _check(name, settings)
        n, dim = documents.shape
        metric = faiss.METRIC_L2 if self._euclidean else faiss.METRIC_INNER_PRODUCT
        with self._alone(f"+index={name} over {n:,} documents of {dim} dimensions"):
            _refuse_large(name, n, dim)
            index = faiss.index_factory(dim, name, metric)
            self.notes = _told(_parts(faiss, index)[1], n, name)
            for part in _inside(faiss, index):
                _seeded(part, order.seed, settings)
            index.train(documents)
            index.add(documents)
        self._index, self.n_docs, self._dim = index, n, dim
        # training may have replaced the objects
        self._chain, self._exact = _parts(faiss, index)
        plain = (faiss.IndexFlat, faiss.IndexIVFFlat)
        self.lossless = not self._chain and isinstance(self._exact, plain)
        self._told = {"name": name, "search": settings}
        if settings is not None:
            with self._alone(f"+search={settings} of +index={name}"):
                faiss.ParameterSpace().set_index_parameters(index, settings)  # type: ignore[arg-type]  # its stubs are wrong

    def search(self, queries: NDArray[Any], k: int) -> Found:
        """Search the index."""
        with self._alone("the search"):
            return Found(np.asarray(self._index.search(queries, min(k, self.n_docs))[1], dtype=np.int64))

    def scores(self, queries: NDArray[Any]) -> NDArray[np.float32]:
        """Return the scores of all documents by exhaustive search of the same codes."""
        asked = queries
        for transform in self._chain:
            asked = transform.apply(asked)
        with self._alone("the exhaustive search"):
            everywhere = _everywhere(self._faiss, self._exact)
            values, positions = self._exact.search(asked, self.n_docs, params=everywhere)
        if (positions < 0).any():
            raise UnsupportedError(
                f"{type(self._exact).__name__} does not score every document, so the compression error cannot be "
                "told from the search recall; expected another +index="
            )
        scores = np.empty(values.shape, dtype=np.float32)
        np.put_along_axis(scores, positions, values.astype(np.float32), axis=1)
        if self._exact.metric_type == self._faiss.METRIC_INNER_PRODUCT:
            return scores
        np.maximum(scores, 0, out=scores)
        return np.negative(np.sqrt(scores) if self._euclidean else scores / 2, dtype=np.float32)

    def describe(self) -> dict[str, Any]:
        """Describe the index for run.json."""
        size = None
        if self.n_docs * self._dim <= _LARGE:
            size = len(self._faiss.serialize_index(self._index))
        return {**self._told, "library": f"faiss {version_of('faiss-cpu') or self._faiss.__version__}", "bytes": size}

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Compute in one thread, and turn faiss' errors into one line."""
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
    """Yield an index and those that it consists of."""
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index", "refine_index", "storage", "quantizer"):
        if (part := getattr(index, name, None)) is not None and isinstance(part, faiss.Index):
            yield from _inside(faiss, part)


def _parts(faiss: Any, index: Any) -> tuple[list[Any], Any]:
    """Return the transforms of a query, and the inner index whose exhaustive search is exact over the codes."""
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
    """Seed an index, let it train on few vectors without a warning (a note says it), and skip polysemous training.

    That renumbers the centroids of a product quantizer for a search that compares codes by their bits (+search=ht=N).
    It takes a second or two for each part of a vector, and no other search depends on it.
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
    """Note if there are fewer vectors than faiss advises for training."""
    centroids = max(getattr(index, "nlist", 0), getattr(getattr(index, "pq", None), "ksub", 0))
    wanted = _ADVISED * centroids
    if n >= wanted:
        return ()
    return (f"+index={name} was trained on {n:,} documents; faiss advises {wanted:,} for its {centroids} centroids",)


def _everywhere(faiss: Any, index: Any) -> Any:
    """Return parameters of a search through all lists of an inverted file; None for other indexes."""
    if not isinstance(index, faiss.IndexIVF):
        return None
    graph = hasattr(faiss.downcast_index(index.quantizer), "hnsw")
    coarse = faiss.SearchParametersHNSW(efSearch=index.nlist) if graph else None
    return faiss.SearchParametersIVF(nprobe=index.nlist, quantizer_params=coarse)


def _check(name: str, search: str | None) -> None:
    """Refuse strings and numbers that faiss cannot take; faiss itself checks neither."""
    if not _FACTORY.fullmatch(name):
        near = nearest(name, _LIKE, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected such as {', '.join(_LIKE[:4])}"
        if _FACTORY.fullmatch(f"{name},Flat"):
            hint = f"lists hold codes or vectors: type +index={name},Flat or +index={name},PQ16"
        raise UnsupportedError(f"+index={name} is no index of faiss that can be used here; {hint}")
    for part, *numbers in _NUMBERS.findall(name):
        for number, (least, most) in zip(filter(None, numbers), _RANGES[part], strict=False):
            if not least <= int(number) <= most:
                raise UnsupportedError(f"+index={name}: {part} takes a number from {least:,} to {most:,}; got {number}")
    read_numbers(f"+search={search}", search, _SEARCH)


def _refuse_large(name: str, n: int, dim: int) -> None:
    """Refuse an index whose links, centroids and codebooks would fill the memory: faiss then ends Python."""
    size, most = 0, 2 * max(dim, 32)
    for part, first, second in _NUMBERS.findall(name):
        parts, ksub = int(first), 1 << (int(second or 8) if part in {"PQ", "RQ"} else 0)
        width = {"OPQ": int(second or 0), "PCA": parts, "RR": parts, "Pad": parts}.get(part, 0)
        if width > most:
            raise ValueError(f"{part} would make vectors of {width:,} numbers; expected at most {most:,}")
        size += {
            "HNSW": 8 * n * parts,
            "IVF": parts * (4 * dim + 64),
            "PQ": 4 * ksub * dim,
            "RQ": 4 * ksub * parts * (dim + ksub * (parts - 1) // 2),  # products of every two codebooks
        }.get(part, 4 * dim * max(dim, width))
    if size > max(_LARGEST, 16 * 4 * n * dim):
        raise ValueError(f"it would take {size:,} bytes beside their codes")


def _wider(name: str, search: str | None) -> str | None:
    """Return the `+search=` of four times as many lists or candidates; faiss' defaults are 1 and 16."""
    key, usual = ("nprobe", 1) if name.startswith("IVF") else ("efSearch", 16) if name.startswith("HNSW") else ("", 0)
    given = dict(setting.partition("=")[::2] for setting in search.split(",")) if search else {}
    return ",".join(f"{k}={v}" for k, v in {**given, key: 4 * int(given.get(key, usual))}.items()) if key else None


def _others(name: str) -> Iterator[str]:
    """A graph with twice the links, or of bytes; else codes of a byte a number, or of two where there is one."""
    if graph := re.match(r"HNSW(\d*)", name):
        links, codes = int(graph[1] or 32), name[graph.end() :]
        if 2 * links <= _RANGES["HNSW"][0][1]:
            yield f"HNSW{2 * links}{codes}"
        yield f"HNSW{links}_SQ8" if codes != "_SQ8" else f"HNSW{links}_SQfp16"
    elif (finer := re.sub(_COARSE, "SQ8", name)) != name:
        yield finer
    elif name.endswith("SQ8"):
        yield f"{name.removesuffix('SQ8')}SQfp16"


ENGINE = Engine(
    what="faiss: whatever its index_factory makes",
    build=Faiss,
    packages=(Package(name="faiss-cpu", module="faiss", extra="faiss", note="approximate indexes, +index=HNSW32"),),
    codes=True,
    reads=lambda _: True,
    check=_check,
    wider=_wider,
    others=_others,
    place=100,
)
