"""The index of a candidate: what faiss cannot take never reaches it; what scoring asks of an index."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.index import refuse_index
from quantdrift.builtin.index.engine import Order, engine_of
from quantdrift.scoring.deployed import score_deployed
from quantdrift.scoring.indexes import Found, SearchIndex
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.stages import VectorStage
from quantdrift.spec.grammar import parse_scheme

REFUSED = {
    # of these, faiss ended Python, or asked for all memory
    "HNSW takes a number from 2 to 256": "HNSW0 HNSW1 HNSW0_SQ8 HNSW1_SQ8 HNSW999999999 IVF4_HNSW1,Flat",
    "PQ takes a number from 1 to 16": "PQ8x0 PQ8x20 IVF4,PQ8x0 HNSW4_PQ8x0",
    "PQ takes a number from 1 to 1,024": "PQ0 PQ0x4fs PQ9999x4",
    "RQ takes a number": "RQ0x0 RQ0x4 RQ4x0 RQ999x4 RQ4x99",
    "IVF takes a number": "IVF0,Flat IVF999999999,Flat",
    "OPQ takes a number": "OPQ0,PQ4 OPQ8_0,PQ4 OPQ999999999,Flat",
    "takes a number from 1 to 8,192": "PCA0,Flat PCAW0,Flat PCAR99999,Flat RR0,Flat Pad0,Flat",
    "type [+]index=IVF4,Flat or": "IVF4",
    "is no index of faiss that can be used here": f"""
        IMI2x20,Flat Residual2x20,PQ4 NSG1 NNDescent0 LSH ZnLattice3x5_6 IVF4(HNSW0),Flat ITQ,LSH Refine(PQ2x4fs)
        PQ8,Refine(PQ2x4fs) IVF64,IVF64,Flat {"L2norm," * 12}Flat IDMap,Flat LSQ8x8 PQ8x SQ3 RaBitQ99 IVF4M,Flat
        IVF-4,Flat PQ4+4 PQ8, ,Flat FlatPanorama0 PRQ0x0x0
    """,
}


@pytest.mark.parametrize(
    ("message", "index"), [(said, name) for said, names in REFUSED.items() for name in names.split()]
)
def test_what_a_library_cannot_take_never_reaches_it(monkeypatch, message, index):
    pytest.importorskip("faiss")
    monkeypatch.setattr("faiss.index_factory", lambda *_: pytest.fail("faiss saw it"))
    with pytest.raises(UnsupportedError, match=message):
        refuse_index(index)
    with pytest.raises(UnsupportedError, match=message):
        engine_of(index).build(Order(name=index, documents=np.eye(8, dtype=np.float32), similarity="cosine"))


@pytest.mark.parametrize("search", ["efSearch=0", "efSearch=999999999", "x=1"])
def test_what_a_search_cannot_be_set_to_is_refused(search):
    pytest.importorskip("faiss")
    with pytest.raises(UnsupportedError, match="=1 to 65536"):
        refuse_index("HNSW32", search)


CORNERS = """
import sys, numpy as np
from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.index.engine import Order, engine_of

codes = ["Flat", "SQ4", "PQ1x1", "PQ1x16", "PQ1024", "PQ4x4fs", "PQ8x4fsr", "PQ4x1np", "RQ1x1", "RQ2x4", "RaBitQ"]
graphs = ["HNSW", "HNSW2", "HNSW256", "HNSW2_SQ8", "HNSW2_SQfp16", "HNSW256_PQ1x1", "HNSW4_PQ4x4", "HNSW2,Flat"]
before = ["PCA1", "PCAW2", "PCAR8192", "OPQ1", "OPQ1024", "OPQ2_8", "RR", "RR1", "L2norm", "Pad1", "Pad64"]
names = codes + graphs + [f"{part},SQ8" for part in before] + [f"{part},HNSW2" for part in before]
names += [f"{lists},{code}" for lists in ("IVF1", "IVF1048576", "IVF2_HNSW2") for code in codes]
names += [f"{name},{more}" for name in ("PQ4x4", "IVF1,PQ4x4fs", "HNSW2", "SQ8") for more in ("RFlat", "Refine(SQ4)")]
asked = [(name, None) for name in names]
asked += [("HNSW2", "efSearch=1"), ("HNSW2", "efSearch=65536"), ("IVF2,Flat", "nprobe=1048576,max_codes=1")]
asked += [("IVF2_HNSW2,SQ8", "quantizer_efSearch=65536"), ("PQ4x4,RFlat", "k_factor_rf=1000")]
made = 0
for name, search in asked:
    for n, dim, similarity in ((1, 8, "cosine"), (3, 8, "euclidean"), (40, 8, "dot"), (70, 9, "euclidean")):
        documents = np.random.default_rng(0).normal(size=(n, dim)).astype(np.float32)
        order = Order(name=name, search=search, seed=1, documents=documents, similarity=similarity)
        try:
            index = engine_of(name).build(order)
            index.search(documents[:3], 10)
            index.describe()
            made += 1
        except UnsupportedError:
            pass
print(made)
"""


@pytest.mark.slow
def test_what_is_let_through_never_ends_python():
    pytest.importorskip("faiss")
    done = subprocess.run([sys.executable, "-c", CORNERS], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 150


def test_protocol_is_all_that_scoring_asks():
    """A SearchIndex of another package needs no more than this."""

    class Mine(SearchIndex):
        def __init__(self, order: Order) -> None:
            self.documents = order.documents

        def search(self, queries, k):
            return Found(np.argsort(-(queries @ self.documents.T), axis=1, kind="stable")[:, :k])

        def describe(self):
            return {"name": "mine", "library": "mine 1", "bytes": None}

    class Stage(VectorStage):
        def index(self, stored, similarity):
            return Mine(Order(name="mine", documents=stored.documents.numpy(), similarity=str(similarity)))

    world = np.random.default_rng(3).normal(size=(2, 40, 32)).astype(np.float32)
    stage = Stage(parse_scheme("fp+index=HNSW32"))
    state = score_deployed((stage,), world, world, similarity=Similarity.COSINE, k=5)
    assert (state.candidate_top()[0] == state.reference_top()[0]).mean() > 0.99
    assert state.told["index"]["bytes_per_document"] is None
