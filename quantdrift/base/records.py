"""Files that are written whole or not at all, and JSON that is checked before it is used.

Everything quantdrift reads may come from somebody else: a run folder from an artifact store, a checkpoint from a hub,
a log from another harness. All JSON is read by `parse_json` and `read_json`, which raise only `ValueError` for text
that is too large, nested too deeply or no JSON. The files that quantdrift writes contain a checksum of their content
(`with_checksum`), which is checked when they are read.
"""

import errno
import glob
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from quantdrift.base.errors import DiskError, QuantDriftError, RunError

MAX_JSON = 1 << 30
"""Most bytes of a JSON file; the largest files that quantdrift writes, evidence, are Parquet."""
MAX_DEPTH = 100
"""Most levels of lists and objects; no file that is read has ten."""
_A_DAY = 24 * 3600
"""Seconds."""
DIGEST = "digest"
"""The key that holds the digest of a JSON object."""


# --- JSON from outside ------------------------------------------------------------------------


def parse_json(text: str | bytes, *, strict: bool = False) -> Any:
    """Parse a JSON text from any source, as UTF-8 if it is bytes."""
    if isinstance(text, bytes):
        text = text.decode("utf-8")  # a UnicodeDecodeError is a ValueError
    hooks: dict[str, Any] = {"parse_constant": _finite, "parse_float": _finite, "parse_int": _whole}
    try:
        value = json.loads(text, **({**hooks, "object_pairs_hook": _once} if strict else {}))
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            part
            for whole in level
            if isinstance(whole, dict | list)
            for part in (whole.values() if isinstance(whole, dict) else whole)
            if isinstance(part, dict | list)
        ]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def read_json(path: Path, *, strict: bool = False, limit: int = MAX_JSON) -> Any:
    """Parse a JSON file of at most `limit` bytes from any source; raises as `open_file` and `parse_json`."""
    return parse_json(read_bytes(path, limit=limit), strict=strict)


def entries(value: Any, key: str = "", *, without: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield a JSON value and all values inside it at any depth, each with the key above it.

    Values below the keys in `without` are skipped.
    """
    yield key, value
    if isinstance(value, Mapping):
        for name, part in value.items():
            if name not in without:
                yield from entries(part, name, without=without)
    elif isinstance(value, list):
        for part in value:
            yield from entries(part, key, without=without)


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file from any source for reading bytes; a folder, pipe or device is refused."""
    # without O_NONBLOCK a pipe would wait for a writer for ever
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is a pipe or a device, and no file")
        yield file


LONGEST = 64 << 20
"""Most bytes of one line, or of one text, of data."""
_PACKED, _ALWAYS = 200, 256 << 20


def refuse_bomb(made: int, stored: int) -> None:
    """Refuse data that unpack to far more than their size: real data pack by 2 to 50 times, bombs by 1,000.

    Raises:
        ValueError: more than 200 times, and more than 256 MB.
    """
    if made > max(_ALWAYS, _PACKED * stored):
        raise ValueError(f"{stored:,} bytes unpack to {made:,} or more; expected data, which pack by 2 to 50 times")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in content if names.count(name) > 1)
        raise ValueError(f"{twice!r} occurs twice in one object")
    return content


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"expected finite numbers, got {text[:40]}")
    return value


def _whole(text: str) -> int:
    if len(text) > 20 or abs(value := int(text)) >= 1 << 63:  # noqa: PLR2004 -- digits; more take long
        raise ValueError(f"expected whole numbers of 64 bits, got {text[:40]}")
    return value


# --- digests ----------------------------------------------------------------------------------


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the digest of its content as its last key; tuples become lists, as when read back."""
    fields = {key: value for key, value in content.items() if key != DIGEST}
    plain = json.loads(json.dumps(fields, allow_nan=False))
    return {**plain, DIGEST: _content_digest(plain)}


def check_checksum(content: Mapping[str, Any]) -> None:
    """Raise a ValueError unless the checksum of an object matches its content."""
    stated = content.get(DIGEST)
    if not isinstance(stated, str):
        raise ValueError("its digest is missing")  # noqa: TRY004 -- of the content, not of an argument
    if stated != _content_digest({k: v for k, v in content.items() if k != DIGEST}):
        raise ValueError("its content does not match its digest: it was changed since")


def _content_digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return bytes_digest(text.encode("ascii"))


def bytes_digest(content: bytes | memoryview, *, size: int = 20) -> str:
    """A digest of `size` bytes as hex digits; by default the same as `file_digest` of these bytes."""
    return hashlib.blake2b(content, digest_size=size).hexdigest()


def texts_digest(texts: Iterable[str], *, size: int = 20) -> str:
    """A digest of many texts in their order, `size` bytes as hex digits; the texts are not joined in memory."""
    digest = hashlib.blake2b(digest_size=size)
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


def file_digest(path: Path, *, size: int = 20) -> str:
    """A digest of a file's bytes, `size` bytes as hex digits; raises as `open_file`."""
    with open_file(path) as opened:
        stream: Any = opened
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=size)).hexdigest()


def read_bytes(path: Path, *, digest: str | None = None, limit: int | None = None) -> bytes:
    """Read the bytes of a file; more than `limit` bytes are a ValueError, another digest a RunError."""
    with open_file(path) as file:
        content = file.read(-1 if limit is None else limit + 1)
    if limit is not None and len(content) > limit:
        raise ValueError(f"it is larger than {limit:,} bytes")
    if digest not in {None, bytes_digest(content)}:
        raise RunError(
            f"{path} does not match its run.json: it was changed since, or comes from another run. Copy the whole run "
            "folder again, or make the run again"
        )
    return content


# --- JSON that quantdrift wrote ---------------------------------------------------------------

Whole = Annotated[int, Field(ge=0, lt=1 << 63)]
Some = Annotated[int, Field(ge=1, lt=1 << 63)]
Real = Annotated[float, Field(ge=-1e300, le=1e300)]
Amount = Annotated[float, Field(ge=0, le=1e300)]
Share = Annotated[float, Field(ge=0, le=1)]
Bits = Annotated[float, Field(ge=0, le=1024)]
"""Types of the numbers in a file; each has bounds, which a test checks."""
AS_LIST = Strict(False)
"""Marks a tuple in a record, `Annotated[tuple[int, ...], AS_LIST]`, which JSON writes as a list."""


class Record(BaseModel):
    """A JSON file that quantdrift writes: format and version, fields, and a digest of them all.

    A subclass sets the class variables and declares its content as fields of pydantic.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int]
    WHAT: ClassVar[str]
    """Its name in messages: "a router"."""
    MAKE: ClassVar[str]
    """The command that writes one."""
    IF_CHANGED: ClassVar[str] = ""
    """Advice for users who changed the file on purpose; appended to the error on a wrong digest."""
    ERROR: ClassVar[type[QuantDriftError]] = RunError
    """The class of the error for a file that cannot be used."""
    VERSION_KEY: ClassVar[str] = "format_version"
    LIMIT: ClassVar[int] = MAX_JSON
    """Most bytes of a file."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file and check every field."""
        content = cls.read_content(path)
        return cls.checked({key: content[key] for key in content if key not in {*cls.head(), DIGEST}}, path)

    @classmethod
    def read_content(cls, path: Path) -> dict[str, Any]:
        """Read the JSON object in a file of this format and version; its fields are not checked."""
        again = f"Make it again: {cls.MAKE}"
        try:
            content = read_json(path, strict=True, limit=cls.LIMIT)
            kind = content.get("format") if isinstance(content, dict) else None
            if kind == cls.FORMAT and content.get(cls.VERSION_KEY) == cls.VERSION and cls.has_checksum(content):
                check_checksum(content)
        except OSError as problem:
            message = f"expected {cls.WHAT} in {path}, which cannot be read ({problem.strerror}). {again}"
            raise cls.ERROR(message) from problem
        except ValueError as problem:
            raise cls.ERROR(f"{path} is damaged, expected {cls.WHAT}: {problem}. {again}{cls.IF_CHANGED}") from problem
        if kind != cls.FORMAT:
            raise cls.ERROR(f"expected {cls.WHAT}; {path} holds something else. {again}")
        if content.get(cls.VERSION_KEY) != cls.VERSION:
            version = content.get(cls.VERSION_KEY)
            reads = f"this quantdrift reads version {cls.VERSION}"
            if isinstance(version, int) and version > cls.VERSION:
                again = "A newer quantdrift wrote it: pip install --upgrade quantdrift"
            raise cls.ERROR(f"{path} is of format version {version}; {reads}. {again}")
        return dict(content)

    @classmethod
    def peek(cls, path: Path) -> dict[str, Any] | None:
        """Read the JSON object in a file of this format, of any version and unchecked; None for any other file."""
        try:
            content = read_json(path)
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) and content.get("format") == cls.FORMAT else None

    @classmethod
    def checked(cls, content: Mapping[str, Any], path: Path) -> Self:
        """Check the fields of a file; raises as `read`."""
        try:
            return validated(cls, content)
        except (ValueError, QuantDriftError) as problem:
            message = f"{path} is damaged, expected {cls.WHAT}: {problem}. Make it again: {cls.MAKE}"
            raise cls.ERROR(message) from problem

    @classmethod
    def has_checksum(cls, content: Mapping[str, Any]) -> bool:
        """Whether the digest has to match the content."""
        return True

    @classmethod
    def check_place(cls, path: Path) -> None:
        """Refuse a place that holds another kind of file, before hours are spent on making one."""
        check_writable(path, what=cls.WHAT)
        if path.exists() and cls.peek(path) is None:
            raise RunError(
                f"{path} holds something that is not {cls.WHAT}; expected a new file or an earlier "
                f"{cls.WHAT.split(maxsplit=1)[1]} to replace. Choose another place."
            )

    def write(self, path: Path) -> None:
        """Write the file whole, replacing an earlier one of its kind."""
        self.check_place(path)
        write_text(path, self.text(), what=f"the {self.WHAT.split(maxsplit=1)[1]}")

    def text(self) -> str:
        """The text of the file: format, version, fields and digest."""
        return json.dumps(self.content(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def content(self) -> dict[str, Any]:
        """The JSON object in the file, with its checksum."""
        return with_checksum({**self.head(), **self.model_dump()})

    @classmethod
    def head(cls) -> dict[str, Any]:
        """Return the keys that a file begins with: format and version."""
        return {"format": cls.FORMAT, cls.VERSION_KEY: cls.VERSION}


Model = TypeVar("Model", bound=BaseModel)


def validated(kind: type[Model], content: object) -> Model:
    """Check content from any source, as JSON text or as its value; a ValueError says briefly what is wrong."""
    try:
        return kind.model_validate(parse_json(content) if isinstance(content, str | bytes) else content)
    except ValidationError as error:
        raise ValueError(problem_of(error)) from error


def problem_of(error: ValidationError) -> str:
    """The first problem of a file, in a few words."""
    first = error.errors()[0]
    place = ".".join(str(step) for step in first["loc"])
    if first["type"] == "missing":
        return f"{place} is missing"
    what = first["msg"].removeprefix("Value error, ")
    if first["type"] != "value_error":
        what = f"{what[:1].lower()}{what[1:].partition(' or instance')[0]}; got {first['input']!r:.40}"
    return f"{place}: {what}" if place else what


# --- writing ----------------------------------------------------------------------------------

_UNDONE = "; nothing was left behind. Free some space or choose another place"
"""The end of the message where a write has failed."""


def check_writable(path: Path, *, what: str) -> None:
    """Raise a RunError unless `what` ("the run") can be written at a place, before hours are spent on it."""
    place = Path(os.path.realpath(path))
    beside = next((folder for folder in place.parents if folder.exists()), None)
    if beside is None:
        raise RunError(f"{what} cannot be written to {path}, which is no place for a file. Choose another place")
    with refusals(f"{what} cannot be written to {path}", f" ({beside}). Choose another place"):
        clear_dead(beside, place.name)
        tried = tempfile.mkdtemp(prefix=f".{place.name}.partial-", dir=beside)
        with suppress(FileNotFoundError):  # another process removed it as dead
            os.rmdir(tried)


def write_text(path: Path, text: str, *, what: str) -> None:
    """Write a text file whole, replacing an earlier one."""
    with refusals(f"{what} was not written to {path}", _UNDONE), whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def whole_file(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """A place to write to; when the block ends the file is at `path`, in place of what was there.

    After an error nothing is left of it and the place is as it was. With `sync` it is forced onto the disk before it
    takes its place, so that a power cut leaves it whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_dead(path.parent, path.name)
    partial = path.with_name(f".{path.name}.partial-{secrets.token_hex(4)}")
    with _held(partial, partial.touch):
        try:
            yield partial
            if sync:
                _sync(partial)
            os.replace(partial, path)
            if sync:
                with suppress(OSError):  # it is in place; only a power cut could still lose it
                    _sync(path.parent)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, *, what: str) -> Iterator[Path]:
    """An empty folder to fill; when the block ends it is at `path`, in place of what was there.

    It lies in a hidden folder beside its place until it is complete and on the disk, and changes places with what is
    there in one step: who reads finds one or the other, whoever writes at the same time. After an error, Ctrl-C too,
    nothing is left of it and the place is as it was. What a kill leaves is hidden, and removed by whoever writes here
    next. Whether what is there may go has to be checked before. A link to a folder stays one.
    """
    with refusals(f"{what} was not written to {path}", _UNDONE), ExitStack() as held:
        place = Path(os.path.realpath(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        clear_dead(place.parent, place.name)
        hidden = place.with_name(f".{place.name}.partial-{secrets.token_hex(4)}")
        held.enter_context(_held(hidden, lambda: hidden.mkdir(mode=0o700, exist_ok=True)))
        try:
            # mkdtemp makes folders private; one inside is as readable as anything else made here. A
            # model library that is asked to save also names its folder in what it writes or logs.
            inside = hidden / "new" / place.name
            inside.mkdir(parents=True)
            yield inside
            for part in (*inside.rglob("*"), inside):
                if not part.is_symlink():
                    _sync(part)
            _move(inside, place, hidden)
            with suppress(OSError):  # it is in place; only a power cut could still lose it
                _sync(place.parent)
        finally:
            _remove(hidden, place)


def clear_dead(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left in a folder of what they were writing there: at one name, or at all."""
    for left in folder.glob(".*.partial-*" if name is None else f".{glob.escape(name)}.partial-*"):
        place = folder / left.name[1:].rpartition(".partial-")[0]
        with suppress(OSError):
            handle = _hold(left)
            try:
                if handle is not None or time.time() - left.lstat().st_mtime > _A_DAY:
                    _remove(left, place)
            finally:
                if handle is not None:
                    os.close(handle)


def _remove(hidden: Path, place: Path) -> None:
    if not hidden.is_dir() or hidden.is_symlink():
        hidden.unlink(missing_ok=True)
        return
    for earlier in hidden.glob("earlier-*"):  # what was put aside goes back, if nothing took its place
        with suppress(OSError):
            os.rename(earlier, place)
    shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def _held(path: Path, make: Callable[[], None]) -> Iterator[None]:
    """Make a file or folder; inside, nobody takes it for dead."""
    while True:
        make()
        try:
            handle = _hold(path)
            break
        except (BlockingIOError, FileNotFoundError):  # somebody took it for dead before it was held, and removes it
            continue
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _hold(path: Path) -> int | None:
    """A handle that holds a file or folder until it is closed; None where the system or the disk cannot."""
    try:
        import fcntl  # noqa: PLC0415 -- Windows has none
    except ImportError:
        return None
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(handle), os.lstat(path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError | FileNotFoundError):
            raise
        return None
    return handle


def _move(inside: Path, place: Path, hidden: Path) -> None:
    """Move a folder to its place; what was there ends up in the hidden folder."""
    for _ in range(1000):  # again, if another process wrote here in between
        try:
            os.rename(inside, place)  # there is nothing, or an empty folder
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
        else:
            return
        if _exchange(inside, place):
            return
        with suppress(FileNotFoundError):
            os.rename(place, hidden / f"earlier-{secrets.token_hex(4)}")
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(place))


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; False if the system or the disk cannot do that."""
    import ctypes  # noqa: PLC0415 -- 5 ms that only writing costs

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        names = os.fsencode(first), os.fsencode(second)
        if sys.platform == "darwin":
            return bool(libc.renamex_np(*names, 2) == 0)  # RENAME_SWAP
        return bool(libc.renameat2(-100, names[0], -100, names[1], 2) == 0)  # RENAME_EXCHANGE
    except (OSError, AttributeError, TypeError):  # Windows has no such library at all
        return False


def _sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    if os.name == "nt":  # it syncs no folders, and no files that are open for reading
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:  # a disk that has no sync
            raise
    finally:
        os.close(handle)


@contextmanager
def refusals(problem: str, then: str) -> Iterator[None]:
    """Turn errors of the disk into "{problem}: no space left{then}", a DiskError if all other writes fail too."""
    try:
        yield
    except Exception as error:
        refused = None if isinstance(error, QuantDriftError) else _from_disk(error)
        if refused is None:
            raise
        full = refused.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        everything = full or refused.errno in {errno.EROFS, errno.EACCES, errno.EPERM}
        why = "no space left" if full else refused.strerror or refused
        raise (DiskError if everything else RunError)(f"{problem}: {why}{then}") from error


def _from_disk(error: Exception) -> OSError | None:
    """Find the error of the disk, also if a library (safetensors) has kept only its text."""
    if isinstance(error, OSError):
        return error
    match = re.search(r"\(os error (\d+)\)", str(error))
    return None if match is None else OSError(int(match[1]), os.strerror(int(match[1])))
