"""An existing collection, which is searched for the queries of the data."""

from quantdrift.parts import Option, Scheme, Stage, UnsupportedError, refuse_missing
from quantdrift_databases.collection.place import READERS, read_place, reader_of

_INSTEAD = ("index", "search", "emb")


def _check(scheme: Scheme) -> str | None:
    if beside := next((key for key in _INSTEAD if scheme.option(key) is not None), None):
        return f"+{beside}= makes an index, and +collection= names an existing one; expected one of them"
    return None


def _refuse(scheme: Scheme) -> None:
    if scheme.option("rescore") is not None:
        raise UnsupportedError("+rescore= needs vectors, and a collection only returns answers; leave it out")
    place = read_place(scheme.option("collection", ""))
    refuse_missing(reader_of(place).packages, needed_for=place.at)


def _brought(scheme: Scheme) -> dict[str, str]:
    return READERS.versions(reader_of(read_place(scheme.option("collection", ""))))


STAGE = Stage(
    what="an existing collection, in place of an index of the data",
    kind="vectors",
    place=60,
    work="quantdrift_databases.collection.stage:NamedCollection",
    options={
        "collection": Option(
            pattern=r"[^+@\s#]{1,400}#[A-Za-z0-9_.-]{1,100}(?:,limit=[1-9][0-9]{0,3})?",
            values="URL#NAME or FOLDER#NAME, with ,limit=N for other than 10 documents",
        )
    },
    check=_check,
    refuse=_refuse,
    versions=_brought,
    reproducible=False,
)
