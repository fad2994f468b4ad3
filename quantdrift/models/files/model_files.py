"""File formats that hold a model for another library than transformers: one object a feature or entry point."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.extras import extras_named
from quantdrift.base.registry import Package, Registry

_TORCH_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A file format, told without the library that reads it; its name is the folder that such files may lie in.

    Attributes:
        what: in words.
        suffix: of its files.
        packages: that read it, all of one extra; none where transformers names them itself.
        writes_with: modules that write a candidate.
        beside: patterns of what the hub has for a file, "{file}" being its path; none where a file is read alone,
            without settings and tokenizer.
        encoder: "module:function" that loads an encoder, of (checkpoint, reference, device): an
            `candidate.checkpoint.Loaded`.
        classifier: "module:function" that loads a classifier, of (checkpoint, device): the classifier, and what is
            stored of it, an `models.stored.StoredLayers`; empty where the format has none.
        save: "module:function" that writes a candidate, of (model, codes, folder, progress): entries of its record;
            empty where none is written.
        load: "module:function" that loads such a candidate, of (folder, device): a SentenceTransformer.
    """

    what: str
    suffix: str
    packages: tuple[Package, ...] = ()
    writes_with: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    encoder: str
    classifier: str = ""
    save: str = ""
    load: str = ""

    def require_writers(self) -> None:
        """Ask for what writes a candidate; MissingExtraError if a module is not installed."""
        with extras_named(needed_for=f"writing {self.what}"):
            for module in self.writes_with:
                import_module(module)


MODEL_FILES: Registry[ModelFile] = Registry(
    "quantdrift.model_files", package="quantdrift.builtin", attribute="MODEL_FILE", kind=ModelFile
)
"""All formats by name."""


def format_of(name: str) -> str | None:
    """The name of the format of a file, by its suffix; None for any other name."""
    return next((format_ for format_, entry in MODEL_FILES.items() if name.lower().endswith(entry.suffix)), None)


def files_in(folder: Path) -> dict[str, str]:
    """The files of a model's folder that another library runs: path in it to format, sorted."""
    files = {
        file.relative_to(folder).as_posix(): name
        for name, entry in MODEL_FILES.items()
        for file in (*folder.glob(f"*{entry.suffix}"), *folder.glob(f"{name}/*{entry.suffix}"))
        if entry.beside and file.is_file()
    }
    return dict(sorted(files.items()))


def holds_weights(folder: Path) -> bool:
    """Whether a folder holds weights of torch, too."""
    return any(next(folder.glob(pattern), None) for pattern in _TORCH_WEIGHTS)


def folder_of(file: Path) -> Path:
    """The model's folder of a file: where its config.json lies, the file's own folder or the one above."""
    for folder in (file.parent, file.parent.parent):
        if (folder / "config.json").is_file() or (folder / "modules.json").is_file():
            return folder
    raise UnsupportedError(
        f"{file} has no config.json beside it or in the folder above; expected a model's folder (config.json, "
        f"tokenizer.json) with the file at its top or in {file.suffix.removeprefix('.')}/"
    )
