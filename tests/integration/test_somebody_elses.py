"""What another package adds, one file of it, works everywhere without a line changed here."""

import json
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

from faults.processes import Forks
from quantdrift.runs.identity import signature
from support.packages import install
from support.tiny_command_line import corpora, one_thread, place

Says = Callable[..., str]


def says(forks: Forks, *words: object, cwd: Path, code: int = 0) -> str:
    """What a command line says: its output, or the error that it ends in."""
    done = forks.start(*words, cwd=cwd)
    assert done.wait() == code, done.printed
    return (done.err if code else done.out).read_text()


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """One process that has imported what takes seconds, and finds all packages of this file."""
    site = tmp_path_factory.mktemp("site")
    for name, (files, points) in PACKAGES.items():
        install(site, name, files, points)
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    with Forks(site, PYTHONPATH=path, COLUMNS="200") as forks:
        yield forks


@pytest.fixture(scope="module")
def doctor(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> str:
    return says(forks, "doctor", cwd=tmp_path_factory.getbasetemp())


@pytest.fixture
def quantdrift(forks: Forks, tmp_path: Path) -> Says:
    return partial(says, forks, cwd=tmp_path)


__all__ = ["corpora", "one_thread", "place"]

TOY = """
from quantdrift.kinds.quantizer import Package, Quantizer

QUANTIZER = Quantizer(
    title="Toward zero", make="toy:of_scheme", packages=(Package(name="toy", module="toy", extra="toy", note="trunc"),)
)


def of_scheme(scheme):
    import torch
    from quantdrift.candidate.quantized import QuantizedWeight, spread
    from quantdrift.builtin.rtn.work import absmax_scale

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


@pytest.mark.slow
def test_a_quantizer(quantdrift: Says, doctor: str, place: Path) -> None:
    data, model = ("--data", place / "a"), place / "tiny"
    run = json.loads(quantdrift("run", f"{model}@W3-toy", *data, "--json", "--quiet"))
    plain = json.loads(quantdrift("run", f"{model}@W3", *data, "--json", "--quiet"))
    assert run["quantization"]["backend"] == "toy"
    assert run["bits_per_weight"] == plain["bits_per_weight"]
    assert run["metrics"]["flip@1"]["value"] != plain["metrics"]["flip@1"]["value"]
    assert run["versions"]["toy"] == "1.0"

    assert "trunc" in doctor
    assert "toy 1.0" in quantdrift("list", "quantizers")
    assert "did you mean toy?" in quantdrift("run", f"{model}@W3-toi", *data, code=2)
    told = quantdrift("run", f"{model}@W3-toy+grid=paper", *data, code=2)
    assert "grid" in told
    words = ("repair", f"{model}@W3", *data, "--quantizers", "toy,rtn", "--json", "--quiet")
    repaired = json.loads(quantdrift(*words))
    assert any("toy" in json.dumps(one) for one in repaired["tried"])


STAGING = """
from contextlib import contextmanager

from quantdrift.base.registry import Package
from quantdrift.candidate.stages import ModelStage, VectorStage
from quantdrift.kinds.stage import Option, Stage

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
def test_stages(quantdrift: Says, doctor: str, tmp_path: Path, place: Path) -> None:
    data, model = ("--data", place / "a"), place / "tiny"
    both = f"{model}@fp+gains=1+clip=0.2"
    run = json.loads(quantdrift("run", both, *data, "--out", "run", "--json", "--quiet"))
    alone = json.loads(quantdrift("run", f"{model}@fp+clip=0.2", *data, "--json", "--quiet"))
    assert run["spec"].endswith("@fp+clip=0.2+gains=1")
    assert (run["quantization"]["gains"], run["deployment"]["clip"], run["versions"]["staging"]) == (5, "0.2", "1.0")
    assert alone["model"]["candidate_fingerprint"] == alone["model"]["fingerprint"]
    assert run["model"]["candidate_fingerprint"] != run["model"]["fingerprint"]
    flips = [each["metrics"]["flip@1"]["value"] for each in (run, alone)]
    assert 0 < flips[1] != flips[0]

    assert "gains of 5 norms rounded" in quantdrift("run", both, *data, "--quiet")
    quantdrift("report", "run", "-o", "run.html")
    assert "gains of 5 norms rounded" in (tmp_path / "run.html").read_text()
    assert "rounds gains" in doctor
    assert "decimals that are kept" in quantdrift("list", "stages")
    assert "decimals that are kept" in quantdrift("run", f"{model}@W4+gains=x", *data, code=2)
    told = quantdrift("quantize", f"{model}@W4+gains=2", "-o", "q", code=2)
    assert "+gains= is about" in told
    words = ("allocate", f"{model}@W3.5+gap+clip=0.2", *data, "-o", "a.json")
    assert "+clip= is of searches" in quantdrift(*words, code=2)
    shares = json.loads(quantdrift("waterfall", both, *data, "--json", "--quiet"))
    assert [each["name"] for each in shares["waterfalls"][0]["stages"]] == ["clip", "norms"]
    words = ("repair", f"{model}@W3", *data, "--quantizers", "rtn", "--json", "--quiet")
    repaired = json.loads(quantdrift(*words))
    assert any("+gains=1" in each["scheme"] for each in repaired["deployments"])


BAGS = """
import json
import zlib
from pathlib import Path

from quantdrift.base.registry import Package
from quantdrift.kinds.encoder import EncoderKind

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
    from quantdrift.models.model import EmbeddingModel
    from quantdrift.scoring.streamed import Similarity

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
def test_a_kind_of_encoders(quantdrift: Says, doctor: str, tmp_path: Path, place: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "bags.json").write_text('{"size": 64}')
    data = ("--data", place / "a")
    words = ("run", "./words@W2-gptq+calib=20", *data, "--out", "run", "--json", "--quiet")
    run = json.loads(quantdrift(*words))
    assert run["metrics"]["flip@1"]["value"] > 0
    assert (run["model"]["layers_quantized"], run["versions"]["bags"]) == (1, "1.0")
    assert "hashed words" in run["data"]["warnings"]
    assert json.loads(quantdrift(*words))["times"] == run["times"]  # it is not measured again
    (tmp_path / "words" / "bags.json").write_text('{"size": 32}')
    anew = json.loads(quantdrift(*words))
    assert anew["model"]["fingerprint"] != run["model"]["fingerprint"]

    quantdrift("report", "run")
    (part,) = json.loads(quantdrift("diff", "run", "run", "--arms", "reference,candidate", "--json"))["parts"]
    assert part["metrics"]["flip@1"] == anew["metrics"]["flip@1"]
    assert "bags of words" in doctor
    assert "bags.json" in quantdrift("list", "encoders")
    told = quantdrift("run", "./words@W4", *data, "--shortlist", "run", code=2)
    assert "words is a bag of words, which searches; these data take a cross-encoder" in told
    assert "quantized self alone" in quantdrift("run", "minilm vs ./words", *data, code=2)
    assert "quantize writes" in quantdrift("quantize", "./words@W4", "-o", "q", code=2)
    repaired = quantdrift("repair", "./words@W3", *data, "--quantizers", "rtn,hqq", "--json", "--quiet")
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


def test_a_format_of_results(quantdrift: Says, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("#lines\nq1 d1 d2 d3\nq2 d2 d1 d3\n")
    (tmp_path / "b.trec").write_text(
        "".join(f"q{q} Q0 d{d} {r} {-r} t\n" for q, ds in ((1, (2, 1, 3)), (2, (2, 1, 3))) for r, d in enumerate(ds))
    )
    (part,) = json.loads(quantdrift("diff", "a.txt", "b.trec", "--json", "-o", "run"))["parts"]
    assert part["metrics"]["flip@1"]["value"] == 0.5
    assert "q1" in quantdrift("show", "run")
    quantdrift("report", "run")
    quantdrift("gate", "a.txt", "b.trec", "--update")
    assert "1 " in quantdrift("gate", "a.txt", "b.trec")
    (tmp_path / "empty").mkdir()
    assert "lines of documents behind #lines" in quantdrift("diff", "empty", "b.trec", code=2)


FILES = """
from quantdrift.base.registry import Package
from quantdrift.models.files.model_files import ModelFile

DUMPED = Package(name="dumps", module="dumps", extra="dumps", note="dumps")
DUMPS = ModelFile(what="a dump", suffix=".dump", packages=(DUMPED,), encoder="dumps:load_encoder")


def load_encoder(checkpoint, reference, device):
    from sentence_transformers import SentenceTransformer
    from quantdrift.candidate.checkpoint import Loaded
    from quantdrift.models.stored import StoredLayers

    assert checkpoint.method == "dumps" and checkpoint.file == "x.dump"
    folder = (checkpoint.folder / checkpoint.file).read_text()
    return Loaded(model=SentenceTransformer(folder, device=str(device)), stored=StoredLayers(packed=(), bits=None))
"""


@pytest.mark.slow
def test_a_file_of_another_library(quantdrift: Says, tmp_path: Path, place: Path) -> None:
    (tmp_path / "x.dump").write_text(str(place / "tiny"))
    words = ("run", f"{place / 'tiny'} vs ./x.dump", "--data", place / "a", "--json", "--quiet")
    run = json.loads(quantdrift(*words))
    assert run["model"]["candidate"]["format"] == "dumps"
    assert (run["metrics"]["flip@1"]["value"], run["bits_per_weight"]) == (0, None)
    assert run["versions"]["dumps"] == "1.0"
    told = quantdrift("run", "./x.dump@W4", "--data", place / "a", code=2)
    assert "x.dump is a dump, which can be the candidate only" in told


COMMAND = "from quantdrift.cli import Command\nCOMMAND = Command(group='Look around', help='What is it?')\n"
ANSWER = """
from quantdrift.cli.options import option, prints
from quantdrift.show.output import Output


@prints("json")
def command(*, n: int = option("N: How many.", default=42)) -> Output:
    return Output(data={"answer": n}, title=f"it is {n}")
"""


def test_a_command(quantdrift: Says) -> None:
    assert "  answer     What is it?" in quantdrift("--help")
    assert json.loads(quantdrift("answer", "--n", "7", "--json")) == {"answer": 7}


ROWS = """
from quantdrift.base.errors import UnsupportedError
from quantdrift.data.streamed import DataKind

DATA = DataKind(accepts="rows:accepts", check="rows:check", read="rows:read", run="rows:run")


def accepts(place, asked):
    return str(place).startswith("rows:")


def check(pair):
    raise UnsupportedError(f"{pair} is not measured on rows")
"""


def test_a_kind_of_data(quantdrift: Says) -> None:
    assert "W4-g128-rtn is not measured on rows" in quantdrift("run", "minilm@W4", "--data", "rows:x", code=2)


BAD = """
from quantdrift.kinds.stage import Option, Stage

X = Stage(what="x", kind="model", work="bad:X", options={"emb": Option()})
"""
BROKEN = {
    "quantdrift.quantizers": {"bad": "bad:NOTHING", "rtn": "bad:X", "Odd": "bad:X", "wrong": "bad:X"},
    **{f"quantdrift.{of}": {"mine": "bad:X"} for of in ("formats", "stages", "encoders", "data")},
}


def test_one_that_is_broken_keeps_nothing_else_from_working(quantdrift: Says, doctor: str, place: Path) -> None:
    quantdrift("run", f"{place / 'tiny'}@W3", "--data", place / "a", "--quiet")
    unknown = quantdrift("run", f"{place / 'tiny'}@W3-bad", "--data", place / "a", code=2)
    for said in (
        "'mine' of quantdrift.data cannot be used",
        "'bad' of quantdrift.quantizers cannot be used",
        "a 'rtn' of its own",
        "lower case",
        "expected Quantizer",
        "expected EncoderKind",
        "there is an option +emb= already",
        "Mend or uninstall the package bad 1.0",
        "dies of quantdrift.quantizers",  # brought by a package that no part declares
    ):
        assert said in " ".join(doctor.split())
    assert "unknown part" in unknown


SEARCHING = """
import numpy as np

from quantdrift.base.registry import Package
from quantdrift.scoring.indexes import Found, SearchIndex
from quantdrift.builtin.index.engine import Engine


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
    asked={"first": (1, 100)},
)
"""


@pytest.mark.slow
def test_an_engine(quantdrift: Says, doctor: str, place: Path) -> None:
    data, model = ("--data", place / "a"), place / "tiny"
    words = ("run", f"{model}@fp+index=searching:sign+search=first=5", *data, "--json", "--quiet")
    run = json.loads(quantdrift(*words))
    assert run["deployment"]["index"]["name"] == "searching:sign"
    assert run["deployment"]["index"]["bytes_per_document"] > 0
    assert run["times"]["query"]["ratio"] > 0
    assert run["versions"]["searching"] == "1.0"
    assert run["metrics"]["index.flip@1"]["value"] == 0  # the whole loss is by its codes
    assert run["metrics"]["codes.flip@1"]["value"] == run["metrics"]["flip@1"]["value"]
    assert "keeps signs" in doctor
    wrong = quantdrift("run", f"{model}@fp+index=searching:sing", *data, code=2)
    assert "did you mean searching:sign?" in wrong

    fall = json.loads(quantdrift("waterfall", f"{model}@W3+index=searching:sign", *data, "--json", "--quiet"))
    (flips,) = (part for part in fall["waterfalls"] if part["metric"] == "flip@1")
    shares = {stage["name"]: stage["share"]["value"] for stage in flips["stages"]}
    assert {*shares} == {"weights", "index"}
    assert sum(shares.values()) == pytest.approx(flips["total"]["value"])


FATAL = """
import os
import sys

from quantdrift.candidate.stages import VectorStage
from quantdrift.kinds.encoder import EncoderKind
from quantdrift.kinds.quantizer import Quantizer
from quantdrift.kinds.stage import Option, Stage

ENDS = Stage(what="an end", kind="vectors", work="fatal:Ends", options={"ends": Option(pattern="abort|exit|late")})
ODD = Stage(what="a fault", kind="vectors", work="fatal:Odd", options={"odd": Option(pattern="none|raise")})
DIES = Quantizer(title="It dies of a real layer", make="fatal:dies", tried=False)
FAULTY = Quantizer(title="It is written for another scheme", make="fatal:faulty", tried=False)
KIND = EncoderKind(what="a failing model", uses=("search",), load="fatal:load", accepts="fatal:accepts", files=("f",))


class Ends(VectorStage):
    def index(self, stored, similarity):
        how = self.scheme.option("ends")
        if how == "late":
            raise ValueError("it was too late")
        os.abort() if how == "abort" else sys.exit(3)


class Odd(VectorStage):
    def stored(self, stored, calibration):
        return None if self.scheme.option("odd") == "none" else stored.rows


def dies(scheme):
    from quantdrift.builtin.rtn.work import RoundToNearest

    class Dies(RoundToNearest):
        def quantize(self, weight, moments=None):
            return super().quantize(weight, moments) if len(weight) == 8 else os.abort()

    return Dies(bits=int(scheme.weight_bits), group_size=scheme.group_size)


def faulty(scheme):
    from quantdrift.builtin.rtn.work import RoundToNearest

    class Faulty(RoundToNearest):
        def quantize(self, weight, moments=None):
            return weight * scheme.bits

    return Faulty(bits=int(scheme.weight_bits), group_size=scheme.group_size)


def accepts(source, revision):
    from pathlib import Path

    return Path(source.location, "f").is_file()


def load(source, **how):
    return source.embeddings
"""


@pytest.mark.parametrize(
    ("spec", "part", "why"),
    [
        ("tiny@fp+odd=none", "'odd' of quantdrift.stages", "expected Stored, got NoneType"),
        ("tiny@fp+odd=raise", "'odd' of quantdrift.stages", "'Stored' object has no attribute 'rows' (fatal.py"),
        ("tiny@W4-faulty", "'faulty' of quantdrift.quantizers", "'Scheme' object has no attribute 'bits' (fatal.py"),
        ("f@W4", "'fails' of quantdrift.encoders", "object has no attribute 'embeddings' (fatal.py"),
    ],
)
def test_one_that_fails_is_named_before_anything_long_begins(
    quantdrift: Says, place: Path, spec: str, part: str, why: str
) -> None:
    (place / "f").mkdir(exist_ok=True)
    (place / "f" / "f").touch()
    told = quantdrift("run", place / spec, "--data", place / "a", "--no-cache", code=2)
    (line,) = (line for line in told.splitlines() if line.startswith("quantdrift: "))
    assert f"{part}, from the package fatal 1.0" in line
    assert why in line
    assert "reference:" not in told  # no stage of the work was shown


def test_one_that_fails_late_is_named_too(quantdrift: Says, place: Path) -> None:
    told = quantdrift("run", f"{place / 'tiny'}@fp+ends=late", "--data", place / "a", "--quiet", code=2)
    assert "unexpected ValueError in fatal 1.0 (" in told


@pytest.mark.slow
def test_one_that_ends_the_process_ends_no_study(quantdrift: Says, forks: Forks, tmp_path: Path, place: Path) -> None:
    """The first cell aborts; so it is tried after the others, and a second end without a word is a failure."""
    schemes = ["fp+ends=abort", "fp+ends=exit", "W4-rtn"]
    study = {"models": [str(place / "tiny")], "schemes": schemes, "data": [str(place / "a")]}
    (tmp_path / "study.yaml").write_text(json.dumps({**study, "settings": {"k": 10}}))

    def ended(verb: str = "run") -> tuple[int, list[str]]:
        code, _ = forks.run("study", verb, "study.yaml", "--out", "out", "--quiet", cwd=tmp_path)
        status = json.loads(quantdrift("study", "status", "out", "--json"))
        return code, [cell["state"] for cell in status["cells"]]

    assert ended() == (-signal.SIGABRT, ["open", "open", "open"])
    assert (tmp_path / "out/.running/tiny@fp+ends=abort_on_a").read_text().startswith("running: attempt 1")
    assert ended() == (-signal.SIGABRT, ["open", "failed", "done"])
    assert ended() == (1, ["failed", "failed", "done"])
    assert "without a word" in quantdrift("study", "status", "out")
    assert ended() == (1, ["failed", "failed", "done"])
    assert ended("retry") == (-signal.SIGABRT, ["open", "open", "done"])


@pytest.mark.slow
def test_one_that_ends_the_process_ends_neither_waterfall_nor_repair(
    quantdrift: Says, forks: Forks, tmp_path: Path, place: Path
) -> None:
    data = ("--data", place / "a", "--quiet")
    fall = ("waterfall", f"{place / 'tiny'}@W4-rtn+ends=abort", *data, "--out", "fall")
    codes = [forks.run(*fall, cwd=tmp_path)[0] for _ in range(5)]
    assert codes == [-signal.SIGABRT] * 4 + [1]  # two combinations abort, twice each

    repair = ("repair", f"{place / 'tiny'}@W3-rtn", *data, "--quantizers", "rtn,dies", "--out", "mended")
    assert [forks.run(*repair, cwd=tmp_path)[0] for _ in range(2)] == [-signal.SIGABRT] * 2
    tried = json.loads(quantdrift(*repair, "--json"))["tried"]
    assert {each["scheme"]: each["reason"] for each in tried}["W3-g128-dies"].startswith("2 attempts ended")
    plain = ("repair", f"{place / 'tiny'}@W3-dies", *data, "--quantizers", "rtn,dies", "--out", "plain")
    assert [forks.run(*plain, cwd=tmp_path)[0] for _ in range(2)] == [-signal.SIGABRT] * 2
    assert "without a word" in quantdrift(*plain, code=2)  # nothing else is taken for the plain scheme


@pytest.mark.slow
def test_another_version_is_another_run(tmp_path: Path, place: Path) -> None:
    """A part that declares no package, in two versions that compute otherwise; and a run that it has no part in."""
    stage = "\n".join(
        [
            "from dataclasses import replace",
            "from quantdrift.candidate.stages import VectorStage",
            "from quantdrift.kinds.stage import Option, Stage",
            "CUT = Stage(what='x', kind='vectors', work='cut:Cut', options={'cut': Option()})",
            "class Cut(VectorStage):",
            "    def stored(self, stored, calibration):",
            "        return replace(stored, documents=stored.documents.round(decimals=DECIMALS))",
        ]
    )
    flips, signatures, times = [], [], []
    for version, decimals in (("0.1", 1), ("0.2", 3)):
        site = tmp_path / version
        files = {"cut.py": stage.replace("DECIMALS", str(decimals))}
        install(site, "cut", files, {"quantdrift.stages": {"cut": "cut:CUT"}}, version=version)
        path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
        with Forks(tmp_path, PYTHONPATH=path, COLUMNS="200") as forks:
            quantdrift = partial(says, forks, cwd=tmp_path)
            words = ("--data", place / "a", "--json", "--quiet")
            run = json.loads(quantdrift("run", f"{place / 'tiny'}@fp+cut=1", *words, "--out", "cut"))
            other = json.loads(quantdrift("run", f"{place / 'tiny'}@W4-rtn", *words, "--out", "other"))
        flips.append(run["metrics"]["flip@1"]["value"])
        signatures.append(signature(run))
        times.append(other["times"])
    assert flips[0] > flips[1] == 0
    assert [signature.rpartition("|")[2] for signature in signatures] == ["cut:0.1", "cut:0.2"]
    assert times[0] == times[1]


PACKAGES: dict[str, tuple[dict[str, str], dict[str, dict[str, str]]]] = {
    "toy": ({"toy.py": TOY}, {"quantdrift.quantizers": {"toy": "toy:QUANTIZER"}}),
    "staging": ({"staging.py": STAGING}, {"quantdrift.stages": {"norms": "staging:NORMS", "clip": "staging:CLIP"}}),
    "bags": ({"bags.py": BAGS}, {"quantdrift.encoders": {"bags": "bags:KIND"}}),
    "fatal": (
        {"fatal.py": FATAL},
        {
            "quantdrift.stages": {"ends": "fatal:ENDS", "odd": "fatal:ODD"},
            "quantdrift.quantizers": {"dies": "fatal:DIES", "faulty": "fatal:FAULTY"},
            "quantdrift.encoders": {"fails": "fatal:KIND"},
        },
    ),
    "lines": ({"lines.py": LINES}, {"quantdrift.formats": {"lines": "lines:FORMAT"}}),
    "dumps": ({"dumps.py": FILES}, {"quantdrift.model_files": {"dumps": "dumps:DUMPS"}}),
    "other": (
        {"answering/__init__.py": COMMAND, "answering/command.py": ANSWER},
        {"quantdrift.features": {"answer": "answering:COMMAND"}},
    ),
    "bad": ({"bad.py": BAD}, BROKEN),
    "rows": ({"rows.py": ROWS}, {"quantdrift.data": {"rows": "rows:DATA"}}),
    "searching": ({"searching.py": SEARCHING}, {"quantdrift.search_engines": {"searching": "searching:ENGINE"}}),
}
"""What is installed: files, and entry points by group and name."""
