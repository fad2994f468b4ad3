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

pytestmark = pytest.mark.slow

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
        "uninstall the package bad 1.0",
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

from quantdrift.parts import EncoderKind, Option, Quantizer, Stage, VectorStage

ENDS = Stage(what="an end", kind="vectors", work="fatal:Ends", options={"ends": Option(pattern="abort|exit|late")})
ODD = Stage(what="a fault", kind="vectors", work="fatal:Odd", options={"odd": Option(pattern="none|raise")})
DIES = Quantizer(title="It dies of a real layer", make="fatal:dies", in_repair=False)
FAULTY = Quantizer(title="It is written for another scheme", make="fatal:faulty", in_repair=False)
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
def test_one_that_fails_is_named_early(quantdrift: Says, place: Path, spec: str, part: str, why: str) -> None:
    (place / "f").mkdir(exist_ok=True)
    (place / "f" / "f").touch()
    told = quantdrift("run", place / spec, "--data", place / "a", "--no-cache", code=2)
    (line,) = (line for line in told.splitlines() if line.startswith("quantdrift: "))
    assert all(part in line for part in (f"{part}, from the package fatal 1.0", why))
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
    assert "without an error" in quantdrift("study", "status", "out")
    assert ended() == (1, ["failed", "failed", "done"])
    assert ended("retry") == (-signal.SIGABRT, ["open", "open", "done"])


@pytest.mark.slow
def test_one_that_ends_the_process_is_left_out(quantdrift: Says, forks: Forks, tmp_path: Path, place: Path) -> None:
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
    assert "without an error" in quantdrift(*plain, code=2)  # nothing else is taken for the plain scheme


@pytest.mark.slow
def test_another_version_is_another_run(tmp_path: Path, place: Path) -> None:
    """A part that declares no package, in two versions that compute otherwise; and a run that it has no part in."""
    stage = "\n".join(
        [
            "from dataclasses import replace",
            "from quantdrift.parts import VectorStage",
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
    "fatal": (
        {"fatal.py": FATAL},
        {
            "quantdrift.stages": {"ends": "fatal:ENDS", "odd": "fatal:ODD"},
            "quantdrift.quantizers": {"dies": "fatal:DIES", "faulty": "fatal:FAULTY"},
            "quantdrift.encoders": {"fails": "fatal:KIND"},
        },
    ),
    "dumps": ({"dumps.py": FILES}, {"quantdrift.model_files": {"dumps": "dumps:DUMPS"}}),
    "bad": ({"bad.py": BAD}, BROKEN),
    "searching": ({"searching.py": SEARCHING}, {"quantdrift.search_engines": {"searching": "searching:ENGINE"}}),
}
"""What is installed: files, and entry points by group and name."""
