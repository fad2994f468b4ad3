"""Find the model that the model part of a spec names."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from quantdrift.base.errors import UnknownNameError, UnsupportedError
from quantdrift.kinds.encoder import KINDS
from quantdrift.models.files.packaged import PACKAGED
from quantdrift.spec.names import ALIASES, READ_AS, short_name

ADAPTER_FILE = "adapter_config.json"
"""The file of peft that says of what model an adapter is."""
OPEN_CLIP = "open_clip:"
"""Prefix of the name of a model that open_clip loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """The place of a model.

    Attributes:
        name: as the user wrote it.
        canonical: hub id, or the folder's name for a local one.
        kind: its source; "loaded" if the user has it in memory.
        location: the argument of loaders: a path, or the hub id.
    """

    name: str
    canonical: str
    kind: Literal["embedded", "local", "hub", "loaded"]
    location: str

    @property
    def shown(self) -> str:
        """Its name in a message, and what that stands for if it is another."""
        return repr(self.name) + ("" if self.name == self.canonical else f" ({self.canonical})")

    @property
    def read_as(self) -> str:
        """The prefix of its name that says how tokens become an embedding: "mean:" or "sparse:"; mostly empty."""
        return next((way for way in READ_AS if self.name.startswith(way)), "")

    @property
    def otherwise(self) -> str:
        """The end of a message, after a ";": what to do without the hub; empty for a model that needs none."""
        if self.kind != "hub":
            return ""
        for alias, model in PACKAGED.items():
            if ALIASES[alias].lower() == self.canonical.lower():
                if model.folder is not None:
                    return f"; the same model is installed here, under the name {alias!r}"
                if model.places:
                    return (
                        "; pip has brought it, and its parts are joined in the cache, which QUANTDRIFT_CACHE turns off"
                    )
                return f"; pip has this model: {model.install} brings it, as {alias!r}"
        return "; try again when the hub can be reached, or name a folder that holds the model"


def is_open_clip(source: ModelSource, revision: str | None = None) -> bool:
    """Say whether open_clip loads a model: by its name, or as its folder holds no other model."""
    is_there = source.kind == "local" and (Path(source.location) / "open_clip_config.json").is_file()
    return source.name.startswith(OPEN_CLIP) or (is_there and not (Path(source.location) / "config.json").is_file())


def resolve(name: str) -> ModelSource:
    """Find the model of a name: a short name, a local folder or a hub id.

    A short name whose package is installed needs no hub; a full hub id always means the hub. A prefix of `READ_AS`
    stays in the name.
    """
    if way := next((way for way in READ_AS if name.startswith(way)), ""):
        return replace(resolve(name.removeprefix(way)), name=name)
    if (alias := short_name(name)) in ALIASES:
        folder = PACKAGED[alias].unpacked() if alias in PACKAGED else None
        kind: Literal["embedded", "hub"] = "hub" if folder is None else "embedded"
        return ModelSource(name=name, canonical=ALIASES[alias], kind=kind, location=str(folder or ALIASES[alias]))
    path = Path(os.path.expanduser(name.removeprefix(OPEN_CLIP)))  # Path.expanduser would fail for an unknown user
    if path.is_dir():
        return _local(name, path)
    if name.startswith(OPEN_CLIP):
        if name.count("/") == 1 and not name.removeprefix(OPEN_CLIP).startswith((".", "/", "~")):
            return ModelSource(name=name, canonical=name, kind="hub", location=str(path))
        raise UnsupportedError(
            f"expected {OPEN_CLIP}ARCHITECTURE/TAG (such as ViT-B-32/openai), {OPEN_CLIP}org/model of a hub, or "
            f"{OPEN_CLIP}FOLDER of a folder that is there; got {name!r}"
        )
    if path.is_absolute() or name.startswith((".", "~")):
        raise UnsupportedError(f"no folder {path} (expected a model folder with a config.json)")
    if name.count("/") == 1:
        return ModelSource(name=name, canonical=name, kind="hub", location=name)
    hint = "(expected a short name, a hub id like org/name, or a folder)"
    model, plus, options = name.partition("+")
    if plus and "@" not in name:
        hint += f"; what is served otherwise stands behind a scheme: {model}@fp+{options}"
    raise UnknownNameError("model", name, ALIASES, hint=hint, longer=ALIASES)


def name_in_config(modules: Iterable[Any]) -> str | None:
    """Return the name or folder in the config of a model's modules, or its short name; None if no config has one."""
    for outermost in modules:
        for module in outermost.modules():
            config = getattr(module, "config", None)
            name = getattr(config, "_name_or_path", None) or getattr(config, "name_or_path", None)
            if isinstance(name, str) and name.strip() == name and name:
                return next((alias for alias, model in PACKAGED.items() if str(model.folder) == name), name)
    return None


def refuse_adapter(name: str) -> NoReturn:
    """Refuse an adapter: it changes another model, which would be measured under its name."""
    raise UnsupportedError(
        f"{name} holds an adapter ({ADAPTER_FILE}); expected a whole model: merge it into its base first "
        "(PeftModel.merge_and_unload(), then save_pretrained(FOLDER)), and name that folder"
    )


def _local(name: str, path: Path) -> ModelSource:
    if not any((path / file).is_file() for kind in KINDS.values() for file in kind.files):
        if (path / ADAPTER_FILE).is_file():
            refuse_adapter(name)
        entries = sorted(entry.name for entry in path.iterdir())[:8]
        raise UnsupportedError(
            f"{path} is not a model folder: expected a config.json or modules.json in it, found "
            f"{', '.join(entries) or 'nothing'}. Save a model there with model.save_pretrained(...)"
        )
    return ModelSource(name=name, canonical=path.resolve().name, kind="local", location=str(path.resolve()))
