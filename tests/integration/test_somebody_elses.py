"""What another package adds, one file of it, works everywhere without a line changed here."""

import json
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import os
import subprocess
import sys
from collections.abc import Mapping

from support.tiny_command_line import corpora, one_thread, place
from support.tiny_command_line import quantdrift as inside


def install(site: Path, name: str, source: str, points: Mapping[str, Mapping[str, str]]) -> Path:
    """Write a module and the metadata that pip would write; entry points by group and name."""
    (site / f"{name}.py").write_text(source, encoding="utf-8")
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    listed = "".join(f"[{group}]\n" + "".join(f"{n} = {at}\n" for n, at in of.items()) for group, of in points.items())
    (info / "entry_points.txt").write_text(listed)
    return site


def quantdrift(site: Path, *words: object, cwd: Path, code: int = 0) -> str:
    """Return what a `quantdrift` says that finds what is installed there: its output, or the error that it ends in."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "quantdrift", *map(str, words)],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


__all__ = ["corpora", "inside", "one_thread", "place"]

TOY = """
from quantdrift.quantizers import Package, Quantizer

QUANTIZER = Quantizer(
    title="Toward zero", make="toy:of_scheme", packages=(Package(name="toy", module="toy", extra="toy", note="trunc"),)
)


def of_scheme(scheme):
    import torch
    from quantdrift.engine.quantizers.base import QuantizedWeight, spread
    from quantdrift.engine.quantizers.rtn import absmax_scale

    class Toy:
        needs_moments = False

        def quantize(self, weight, moments=None):
            bits, size = int(scheme.weight_bits), scheme.group_size
            exact = weight.detach().float()
            scale = absmax_scale(exact, bits=bits, group_size=size)
            codes = torch.trunc(exact / spread(scale, exact.shape[1], size)).to(torch.int8)
            return QuantizedWeight(codes=codes, scale=scale, bits=bits, group_size=size)

        def describe(self):
            return {"backend": "toy", "grid": "symmetric absmax"}

    return Toy()
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    return install(folder, "toy", TOY, {"quantdrift.quantizers": {"toy": "toy:QUANTIZER"}})


@pytest.mark.slow
def test_a_quantizer(site: Path, place: Path, tmp_path: Path) -> None:
    data, model = ("--data", place / "a"), place / "tiny"
    run = json.loads(quantdrift(site, "run", f"{model}@W3-toy", *data, "--json", "--quiet", cwd=tmp_path))
    plain = json.loads(quantdrift(site, "run", f"{model}@W3", *data, "--json", "--quiet", cwd=tmp_path))
    assert run["quantization"]["backend"] == "toy"
    assert run["bits_per_weight"] == plain["bits_per_weight"]
    assert run["metrics"]["flip@1"]["value"] != plain["metrics"]["flip@1"]["value"]
    assert run["versions"]["toy"] == "1.0"

    assert "trunc" in quantdrift(site, "doctor", cwd=tmp_path)
    assert "toy 1.0" in quantdrift(site, "list", "quantizers", cwd=tmp_path)
    assert "did you mean toy?" in quantdrift(site, "run", f"{model}@W3-toi", *data, cwd=tmp_path, code=2)
    told = quantdrift(site, "run", f"{model}@W3-toy+grid=paper", *data, cwd=tmp_path, code=2)
    assert "grid" in told
    words = ("repair", f"{model}@W3", *data, "--quantizers", "toy,rtn", "--json", "--quiet")
    repaired = json.loads(quantdrift(site, *words, cwd=tmp_path))
    assert any("toy" in json.dumps(one) for one in repaired["tried"])


STAGING = """
from contextlib import contextmanager

from quantdrift.base.registry import Package
from quantdrift.engine.stages import ModelStage, VectorStage
from quantdrift.stages import Option, Stage

NORMS = Stage(
    what="gains of the norms",
    kind="model",
    work="staging:Norms",
    options={"gains": Option(pattern="[1-9]", values="decimals that are kept, 1 to 9")},
    tried=({"gains": "1"},),
    packages=(Package(name="staging", module="staging", extra="staging", note="rounds gains"),),
    part="gains",
    lines=lambda gains: [f"gains of {gains} norms rounded"],
)
CLIP = Stage(
    what="the largest numbers of stored embeddings",
    kind="vectors",
    work="staging:Clip",
    options={"clip": Option(pattern="0[.][0-9]+", values="the largest number, below 1")},
)


class Norms(ModelStage):
    @contextmanager
    def applied(self):
        # hooks: the weights are those of the reference, and the outputs are not
        decimals = int(self.scheme.option("gains"))
        parts = [part for module in self.pair.modules for part in module.modules()]
        norms = [part for part in parts if "Norm" in type(part).__name__]
        hooks = [norm.register_forward_hook(lambda _, __, out: out.round(decimals=decimals)) for norm in norms]
        self.n = len(norms)
        yield
        for hook in hooks:
            hook.remove()

    def record(self):
        return {"gains": self.n}


class Clip(VectorStage):
    def stored(self, stored, calibration):
        from dataclasses import replace

        limit = float(self.scheme.option("clip"))
        return replace(stored, documents=stored.documents.clamp(-limit, limit))

    def record(self):
        return {"clip": self.scheme.option("clip")}
"""


@pytest.mark.slow
def test_stages(tmp_path: Path, place: Path) -> None:
    points = {"norms": "staging:NORMS", "clip": "staging:CLIP"}
    site = install(tmp_path, "staging", STAGING, {"quantdrift.stages": points})
    data, model = ("--data", place / "a"), place / "tiny"
    both = f"{model}@fp+gains=1+clip=0.2"
    run = json.loads(quantdrift(site, "run", both, *data, "--out", "run", "--json", "--quiet", cwd=tmp_path))
    alone = json.loads(quantdrift(site, "run", f"{model}@fp+clip=0.2", *data, "--json", "--quiet", cwd=tmp_path))
    assert run["spec"].endswith("@fp+clip=0.2+gains=1")
    assert (run["quantization"]["gains"], run["deployment"]["clip"], run["versions"]["staging"]) == (5, "0.2", "1.0")
    assert alone["model"]["candidate_fingerprint"] == alone["model"]["fingerprint"]
    assert run["model"]["candidate_fingerprint"] != run["model"]["fingerprint"]
    flips = [each["metrics"]["flip@1"]["value"] for each in (run, alone)]
    assert 0 < flips[1] != flips[0]

    assert "gains of 5 norms rounded" in quantdrift(site, "run", both, *data, "--quiet", cwd=tmp_path)
    quantdrift(site, "report", "run", "-o", "run.html", cwd=tmp_path)
    assert "gains of 5 norms rounded" in (tmp_path / "run.html").read_text()
    assert "rounds gains" in quantdrift(site, "doctor", cwd=tmp_path)
    assert "decimals that are kept" in quantdrift(site, "list", "stages", cwd=tmp_path)
    assert "decimals that are kept" in quantdrift(site, "run", f"{model}@W4+gains=x", *data, cwd=tmp_path, code=2)
    told = quantdrift(site, "quantize", f"{model}@W4+gains=2", "-o", "q", cwd=tmp_path, code=2)
    assert "+gains= is about" in told
    words = ("allocate", f"{model}@W3.5+gap+clip=0.2", *data, "-o", "a.json")
    assert "+clip= is of searches" in quantdrift(site, *words, cwd=tmp_path, code=2)
    shares = json.loads(quantdrift(site, "waterfall", both, *data, "--json", "--quiet", cwd=tmp_path))
    assert [each["name"] for each in shares["waterfalls"][0]["stages"]] == ["clip", "norms"]
    words = ("repair", f"{model}@W3", *data, "--quantizers", "rtn", "--json", "--quiet")
    repaired = json.loads(quantdrift(site, *words, cwd=tmp_path))
    assert any("+gains=1" in each["scheme"] for each in repaired["deployments"])


BAGS = """
import json
import zlib
from pathlib import Path

from quantdrift.base.registry import Package
from quantdrift.encoders import EncoderKind

KIND = EncoderKind(
    what="a bag of words, which searches",
    uses=("search",),
    load="bags:load",
    accepts="bags:accepts",
    files=("bags.json",),
    packages=(Package(name="bags", module="bags", extra="bags", note="bags of words"),),
)


def accepts(source, revision):
    return (Path(source.location) / "bags.json").is_file()


def load(source, *, device, revision=None, dtype="float32"):
    import torch
    from quantdrift.engine.encoders.model import EmbeddingModel
    from quantdrift.engine.scoring.streamed import Similarity

    size = json.loads((Path(source.location) / "bags.json").read_text())["size"]
    torch.manual_seed(0)

    class Bags(EmbeddingModel):
        similarity, notes, layers = Similarity.COSINE, ("hashed words",), None

        def __init__(self):
            self.module, self.source = torch.nn.Sequential(torch.nn.Linear(size, 16)).to(device), source

        def encode(self, items, role, batch_size):
            rows = torch.zeros(len(items), size)
            for row, text in zip(rows, items):
                for word in text.split():
                    row[zlib.crc32(word.encode()) % size] += 1
            with torch.no_grad():
                return self.module(rows.to(device)).float().cpu().numpy()

        def key(self, role):
            return {"bags": size}

    return Bags()
"""


@pytest.mark.slow
def test_a_kind_of_encoders(tmp_path: Path, place: Path) -> None:
    site = install(tmp_path, "bags", BAGS, {"quantdrift.encoders": {"bags": "bags:KIND"}})
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "bags.json").write_text('{"size": 64}')
    data = ("--data", place / "a")
    words = ("run", "./words@W2-gptq+calib=20", *data, "--out", "run", "--json", "--quiet")
    run = json.loads(quantdrift(site, *words, cwd=tmp_path))
    assert run["metrics"]["flip@1"]["value"] > 0
    assert (run["model"]["layers_quantized"], run["versions"]["bags"]) == (1, "1.0")
    assert "hashed words" in run["data"]["warnings"]
    assert json.loads(quantdrift(site, *words, cwd=tmp_path))["times"] == run["times"]  # it is not measured again
    (tmp_path / "words" / "bags.json").write_text('{"size": 32}')
    anew = json.loads(quantdrift(site, *words, cwd=tmp_path))
    assert anew["model"]["fingerprint"] != run["model"]["fingerprint"]

    quantdrift(site, "report", "run", cwd=tmp_path)
    (part,) = json.loads(
        quantdrift(site, "diff", "run", "run", "--arms", "reference,candidate", "--json", cwd=tmp_path)
    )["parts"]
    assert part["metrics"]["flip@1"] == anew["metrics"]["flip@1"]
    assert "bags of words" in quantdrift(site, "doctor", cwd=tmp_path)
    assert "bags.json" in quantdrift(site, "list", "encoders", cwd=tmp_path)
    told = quantdrift(site, "run", "./words@W4", *data, "--shortlist", "run", cwd=tmp_path, code=2)
    assert "words is a bag of words, which searches; these data take a cross-encoder" in told
    assert "quantized self alone" in quantdrift(site, "run", "minilm vs ./words", *data, cwd=tmp_path, code=2)
    assert "quantize writes" in quantdrift(site, "quantize", "./words@W4", "-o", "q", cwd=tmp_path, code=2)
    repaired = quantdrift(
        site, "repair", "./words@W3", *data, "--quantizers", "rtn,hqq", "--json", "--quiet", cwd=tmp_path
    )
    assert any("hqq" in each["scheme"] for each in json.loads(repaired)["tried"])


LINES = """
from quantdrift.finished.contents import FinishedRun, Part, digest
from quantdrift.finished.formats import Format


def accepts(source):
    return not source.path.is_dir() and source.text.startswith("#lines")


def read(source):
    rankings = {}
    for line in source.text.splitlines()[1:]:
        query, *items = line.split()
        rankings[query] = {item: -float(rank) for rank, item in enumerate(items)}
    part = Part(kind="rankings", content=rankings)
    return FinishedRun(path=source.path, format="lines", name="lines", digest=digest(source.text), parts={"": part})


FORMAT = Format(expected="lines of documents behind #lines", accepts=accepts, read=read)
"""


def test_a_format_of_results(tmp_path: Path) -> None:
    site = install(tmp_path, "lines", LINES, {"quantdrift.formats": {"lines": "lines:FORMAT"}})
    (tmp_path / "a.txt").write_text("#lines\nq1 d1 d2 d3\nq2 d2 d1 d3\n")
    (tmp_path / "b.trec").write_text(
        "".join(f"q{q} Q0 d{d} {r} {-r} t\n" for q, ds in ((1, (2, 1, 3)), (2, (2, 1, 3))) for r, d in enumerate(ds))
    )
    words = ("diff", "a.txt", "b.trec", "--json", "-o", "run")
    (part,) = json.loads(quantdrift(site, *words, cwd=tmp_path))["parts"]
    assert part["metrics"]["flip@1"]["value"] == 0.5
    assert "q1" in quantdrift(site, "show", "run", cwd=tmp_path)
    quantdrift(site, "report", "run", cwd=tmp_path)
    quantdrift(site, "gate", "a.txt", "b.trec", "--update", cwd=tmp_path)
    assert "1 " in quantdrift(site, "gate", "a.txt", "b.trec", cwd=tmp_path)
    (tmp_path / "empty").mkdir()
    assert "lines of documents behind #lines" in quantdrift(site, "diff", "empty", "b.trec", cwd=tmp_path, code=2)


FILES = """
from quantdrift.base.registry import Package
from quantdrift.checkpoints.model_files import ModelFile

DUMPED = Package(name="dumps", module="dumps", extra="dumps", note="dumps")
DUMPS = ModelFile(what="a dump", suffix=".dump", packages=(DUMPED,), encoder="dumps:load_encoder")


def load_encoder(checkpoint, reference, device):
    from sentence_transformers import SentenceTransformer
    from quantdrift.engine.encoders.checkpoint import Loaded
    from quantdrift.engine.encoders.stored import StoredLayers

    assert checkpoint.method == "dumps" and checkpoint.file == "x.dump"
    folder = (checkpoint.folder / checkpoint.file).read_text()
    return Loaded(model=SentenceTransformer(folder, device=str(device)), stored=StoredLayers(packed=(), bits=None))
"""


@pytest.mark.slow
def test_a_file_of_another_library(tmp_path: Path, place: Path) -> None:
    site = install(tmp_path, "dumps", FILES, {"quantdrift.model_files": {"dumps": "dumps:DUMPS"}})
    (tmp_path / "x.dump").write_text(str(place / "tiny"))
    words = ("run", f"{place / 'tiny'} vs ./x.dump", "--data", place / "a", "--json", "--quiet")
    run = json.loads(quantdrift(site, *words, cwd=tmp_path))
    assert run["model"]["candidate"]["format"] == "dumps"
    assert (run["metrics"]["flip@1"]["value"], run["bits_per_weight"]) == (0, None)
    assert run["versions"]["dumps"] == "1.0"
    told = quantdrift(site, "run", "./x.dump@W4", "--data", place / "a", cwd=tmp_path, code=2)
    assert "x.dump is a dump, which can be the candidate only" in told


def test_a_command(tmp_path: Path) -> None:
    site = install(tmp_path, "other", "", {"quantdrift.features": {"answer": "answering:COMMAND"}})
    (tmp_path / "answering").mkdir()
    (tmp_path / "answering" / "__init__.py").write_text(
        "from quantdrift.cli import Command\nCOMMAND = Command(group='Look around', help='What is it?')\n"
    )
    (tmp_path / "answering" / "command.py").write_text(
        "from quantdrift.cli.options import option, prints\nfrom quantdrift.show.output import Output\n\n\n"
        "@prints('json')\ndef command(*, n: int = option('N: How many.', default=42)) -> Output:\n"
        "    return Output(data={'answer': n}, title=f'it is {n}')\n"
    )
    assert "  answer     What is it?" in quantdrift(site, "--help", cwd=tmp_path)
    assert json.loads(quantdrift(site, "answer", "--n", "7", "--json", cwd=tmp_path)) == {"answer": 7}


def test_a_kind_of_data(tmp_path: Path) -> None:
    code = (
        "from quantdrift.base.errors import UnsupportedError\nfrom quantdrift.data.streamed import DataKind\n"
        "DATA = DataKind(accepts='rows:accepts', check='rows:check', read='rows:read')\n\n\n"
        "def accepts(place, asked):\n    return str(place).startswith('rows:')\n\n\n"
        "def check(pair):\n    raise UnsupportedError(f'{pair} is not measured on rows')\n"
    )
    site = install(tmp_path, "rows", code, {"quantdrift.data": {"rows": "rows:DATA"}})
    line = ("run", "minilm@W4", "--data", "rows:x")
    assert "minilm@W4-g128-rtn is not measured on rows" in quantdrift(site, *line, cwd=tmp_path, code=2)


def test_one_that_is_broken_keeps_nothing_else_from_working(tmp_path: Path, place: Path) -> None:
    points = {"bad": "bad:NOTHING", "rtn": "bad:X", "Odd": "bad:X", "wrong": "bad:X"}
    groups = {"quantdrift.quantizers": points, "quantdrift.formats": {"odd": "bad:X"}}
    groups["quantdrift.stages"] = {"mine": "bad:TAKEN"}
    groups["quantdrift.encoders"] = groups["quantdrift.data"] = {"mine": "bad:X"}
    taken = "from quantdrift.stages import Option, Stage\n"
    taken += "TAKEN = Stage(what='x', kind='model', work='bad:X', options={'emb': Option()})\n"
    site = install(tmp_path, "bad", f"X = 1\n{taken}", groups)
    told = quantdrift(site, "doctor", cwd=tmp_path)
    for said in (
        "'mine' of quantdrift.data cannot be used",
        "'bad' of quantdrift.quantizers cannot be used",
        "a 'rtn' of its own",
        "lower case",
        "expected Quantizer",
        "expected EncoderKind",
        "there is an option +emb= already",
    ):
        assert said in " ".join(told.split())
    quantdrift(site, "run", f"{place / 'tiny'}@W3", "--data", place / "a", "--quiet", cwd=tmp_path)
    assert "unknown part" in quantdrift(
        site, "run", f"{place / 'tiny'}@W3-bad", "--data", place / "a", cwd=tmp_path, code=2
    )


SEARCHING = """
import numpy as np

from quantdrift.base.registry import Package
from quantdrift.engine.scoring.indexes import Found, SearchIndex
from quantdrift.features.index.engine import Engine


class Signs(SearchIndex):
    lossless = False

    def __init__(self, order):
        self.order, self.codes = order, np.sign(order.documents)

    def scores(self, queries):
        return (queries @ self.codes.T).astype(np.float32)

    def search(self, queries, k):
        found = np.argsort(-self.scores(queries), axis=1, kind="stable")[:, :k]
        found[:, self.order.asked.get("first", k) :] = -1
        return Found(found)

    def describe(self):
        return {"name": self.order.name, "library": "searching 1.0", "bytes": self.codes.size // 8}


ENGINE = Engine(
    what="signs of numbers",
    build=Signs,
    packages=(Package(name="searching", module="searching", extra="searching", note="keeps signs"),),
    words={"sign": "a bit a number"},
    asked=("first",),
)
"""


@pytest.mark.slow
def test_an_engine(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    site = install(folder, "searching", SEARCHING, {"quantdrift.search_engines": {"searching": "searching:ENGINE"}})
    data, model = ("--data", place / "a"), place / "tiny"
    words = ("run", f"{model}@fp+index=searching:sign+search=first=5", *data, "--json", "--quiet")
    run = json.loads(quantdrift(site, *words, cwd=tmp_path))
    assert run["deployment"]["index"]["name"] == "searching:sign"
    assert run["deployment"]["index"]["bytes_per_document"] > 0
    assert run["times"]["query"]["ratio"] > 0
    assert run["versions"]["searching"] == "1.0"
    assert run["metrics"]["index.flip@1"]["value"] == 0  # the whole loss is by its codes
    assert run["metrics"]["codes.flip@1"]["value"] == run["metrics"]["flip@1"]["value"]
    assert "keeps signs" in quantdrift(site, "doctor", cwd=tmp_path)
    wrong = quantdrift(site, "run", f"{model}@fp+index=searching:sing", *data, cwd=tmp_path, code=2)
    assert "did you mean searching:sign?" in wrong

    fall = json.loads(
        quantdrift(site, "waterfall", f"{model}@W3+index=searching:sign", *data, "--json", "--quiet", cwd=tmp_path)
    )
    (flips,) = (part for part in fall["waterfalls"] if part["metric"] == "flip@1")
    shares = {stage["name"]: stage["share"]["value"] for stage in flips["stages"]}
    assert {*shares} == {"weights", "index"}
    assert sum(shares.values()) == pytest.approx(flips["total"]["value"])
