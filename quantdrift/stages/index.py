"""The approximate index that is searched, of faiss or usearch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantdrift.base.errors import UnsupportedError, nearest
from quantdrift.base.extras import extras_named
from quantdrift.base.registry import Package
from quantdrift.stages import Option, Stage

if TYPE_CHECKING:
    from quantdrift.spec.grammar import Scheme

_LIKE = ("HNSW32", "IVF64,Flat", "IVF64,PQ16", "PQ16", "SQ8", "RaBitQ", "Flat", "OPQ16,PQ16", "usearch")
_DIM = 20_160
"""Dimensions that every usual number of parts divides."""
_NUMBER = "[A-Za-z_]{1,32}=[0-9]{1,9}(?:[.][0-9]{1,9})?"


def _check(scheme: Scheme) -> str | None:
    if scheme.option("index") is None:
        return "+search= says how an index is searched, and there is none; expected it beside +index="
    return None


def refuse_index(name: str) -> None:
    """Refuse an index that faiss' index_factory cannot read, whatever the documents."""
    if name.lower().startswith("usearch"):
        return
    with extras_named(needed_for=f"+index={name}"):
        import faiss  # noqa: PLC0415 -- an optional extra
    try:
        faiss.index_factory(_DIM, name)
    except RuntimeError as error:
        if "could not parse" not in str(error):
            return  # it depends on the documents, and is told when they are there
        near = nearest(name, _LIKE, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected such as {', '.join(_LIKE[:4])}"
        raise UnsupportedError(f"+index={name} is no index that faiss can make; {hint}") from error


STAGE = Stage(
    what="the index that is searched",
    kind="vectors",
    place=60,
    work="quantdrift.engine.stages.vectors:ApproximateIndex",
    options={
        "index": Option(
            pattern=r"[A-Za-z][A-Za-z0-9_,.()\[\]]{0,99}",
            values="a string of faiss' index_factory (HNSW32, IVF64,Flat, IVF64,PQ16, SQ8, RaBitQ), usearch, or "
            "usearch with its connectivity (usearch32)",
        ),
        "search": Option(
            pattern=f"{_NUMBER}(?:,{_NUMBER})*", values="what the search is set to, such as nprobe=8 or efSearch=64"
        ),
    },
    check=_check,
    refuse=lambda scheme: refuse_index(scheme.option("index", "")),
    draws=True,
    codes=lambda scheme: scheme.option("index") is not None,
    packages=(
        Package(name="faiss-cpu", module="faiss", extra="faiss", note="approximate indexes, +index=HNSW32"),
        Package(name="usearch", module="usearch", extra="usearch", note="approximate indexes, +index=usearch"),
    ),
)
