"""The approximate index of a search; each engine is a module or an entry point of another package."""

from collections.abc import Iterator
from dataclasses import replace

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.extras import extras_named, refuse_missing
from quantdrift.builtin.index.engine import ENGINES, engine_of
from quantdrift.builtin.rescoring import rescored
from quantdrift.kinds.precisions import CODED
from quantdrift.kinds.stage import Advice, Option, Stage
from quantdrift.scheme import Scheme

_NUMBER = "[A-Za-z_]{1,32}=[0-9]{1,9}(?:[.][0-9]{1,9})?"


def _check(scheme: Scheme) -> str | None:
    if scheme.option("index") is None:
        return "+search= says how an index is searched, and there is none; expected it beside +index="
    return None


def _refuse(scheme: Scheme) -> None:
    name, emb = scheme.option("index", ""), scheme.option("emb")
    refuse_index(name, scheme.option("search"))
    if emb in CODED and not engine_of(name).codes:
        raise UnsupportedError(
            f"+index={name} codes embeddings itself, and +emb={emb} has coded them already; leave one of them out"
        )


def refuse_index(name: str, search: str | None = None) -> None:
    """Refuse an index that its engine cannot build, whatever the documents."""
    engine = engine_of(name)
    engine.parts(name, search)
    with extras_named(needed_for=f"+index={name}", packages=engine.packages):
        engine.check(name, search)
        refuse_missing(engine.packages, needed_for=f"+index={name}")


def _mend(scheme: Scheme) -> Advice:
    name, search = scheme.option("index", ""), scheme.option("search")
    if wider := engine_of(name).wider(name, search):
        more = scheme.with_option("search", wider)
        return Advice(what="Search more of the index.", scheme=more, command="run")
    return rescored(scheme) or Advice(what="Take an index that finds more.")


def _remedies(scheme: Scheme) -> Iterator[Scheme]:
    """A wider search, and other indexes of the engine, which may code embeddings themselves in place of `+emb=`."""
    name, search = scheme.option("index"), scheme.option("search")
    if name is None:
        return
    engine = engine_of(name)
    if wider := engine.wider(name, search):
        yield scheme.with_option("search", wider)
        yield scheme.with_option("search", engine.wider(name, wider) or wider)
    for other in engine.others(name):
        yield (more := scheme.with_option("index", other))
        if scheme.option("emb") in CODED:
            yield replace(more, options=tuple(option for option in more.options if option[0] != "emb"))


STAGE = Stage(
    what="the index that is searched",
    kind="vectors",
    place=60,
    work="quantdrift.builtin.index.work:ApproximateIndex",
    options={
        "index": Option(
            pattern=r"[A-Za-z][A-Za-z0-9_,.()\[\]:=-]{0,99}",
            values="a string of faiss' index_factory (HNSW32, IVF64,Flat, IVF64,PQ16, SQ8, RaBitQ), or "
            "an engine and its kind of index (lancedb:IVF_PQ)",
        ),
        "search": Option(
            pattern=f"{_NUMBER}(?:,{_NUMBER})*", values="what the search is set to, such as nprobe=8 or efSearch=64"
        ),
    },
    check=_check,
    refuse=_refuse,
    uses_seed=True,
    remedies=_remedies,
    needs=lambda scheme: [package.name for package in engine_of(scheme.option("index", "")).packages],
    versions=lambda scheme: ENGINES.versions(engine_of(scheme.option("index", ""))),
    stores_codes=lambda scheme: scheme.option("index") is not None,
    advice=_mend,
)
