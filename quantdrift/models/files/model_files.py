"""Formats of model files that other libraries than transformers run; each is an entry of a module or a package."""

from dataclasses import dataclass
from pathlib import Path

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.registry import Package, Registry

_TORCH_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A format of model files, known without the library that reads it. Files may lie in a folder of its name.

    Attributes:
        what: description for messages.
        suffix: suffix of its files.
        packages: packages that read it, all of one extra; none if transformers names them itself.
        companions: patterns of the files that belong to a file on the hub, where "{file}" is its path; none if a file
            is read alone, without settings and tokenizer.
        encoder: "module:function" of (checkpoint, reference, device) that loads an encoder as a
            `candidate.checkpoint.Loaded`.
        classifier: "module:function" of (checkpoint, device) that loads a classifier and returns it with its
            `models.stored.StoredLayers`; empty if the format has none.
    """

    what: str
    suffix: str
    packages: tuple[Package, ...] = ()
    companions: tuple[str, ...] = ()
    encoder: str
    classifier: str = ""


MODEL_FILES: Registry[ModelFile] = Registry(
    "quantdrift.model_files", package="quantdrift.builtin", attribute="MODEL_FILE", kind=ModelFile
)
"""All formats by name."""


def format_of(name: str) -> str | None:
    """Return the name of the format that a file has by its suffix; None for other names."""
    return next((format_ for format_, entry in MODEL_FILES.items() if name.lower().endswith(entry.suffix)), None)


def files_in(folder: Path) -> dict[str, str]:
    """Find the files in a model's folder that other libraries run: path to format, sorted."""
    files = {
        file.relative_to(folder).as_posix(): name
        for name, entry in MODEL_FILES.items()
        for file in (*folder.glob(f"*{entry.suffix}"), *folder.glob(f"{name}/*{entry.suffix}"))
        if entry.companions and file.is_file()
    }
    return dict(sorted(files.items()))


def holds_weights(folder: Path) -> bool:
    """Say whether a folder holds weights of torch."""
    return any(next(folder.glob(pattern), None) for pattern in _TORCH_WEIGHTS)


def folder_of(file: Path) -> Path:
    """Return the folder of a file's model, which has its config.json: the file's own folder or the one above."""
    for folder in (file.parent, file.parent.parent):
        if (folder / "config.json").is_file() or (folder / "modules.json").is_file():
            return folder
    raise UnsupportedError(
        f"{file} has no config.json beside it or in the folder above; expected a model's folder (config.json, "
        f"tokenizer.json) with the file at its top or in {file.suffix.removeprefix('.')}/"
    )
