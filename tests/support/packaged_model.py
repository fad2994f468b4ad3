"""A model that Python packages bring in parts."""

import hashlib
import importlib
import io
import zipfile
from pathlib import Path

from quantdrift.models.files.packaged import PackagedModel


def in_parts(folder: Path, files: dict[str, bytes], n_parts: int = 3) -> PackagedModel:
    """Packages that hold the parts of a zip file of a model, installed in a folder on the path."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**files, "desktop.ini": b"not listed"}.items():
            archive.writestr(f"a-model/{name}", content)
    whole = packed.getvalue()
    size = -(-len(whole) // n_parts)
    for part in range(n_parts):
        place = folder / f"a-part_{part}" / "input"
        place.mkdir(parents=True)
        (place.parent / "__init__.py").write_text("raise AssertionError('no code of a package is to be imported')")
        (place / f"zip.{part}").write_bytes(whole[part * size : (part + 1) * size])
    importlib.invalidate_caches()
    return PackagedModel(
        packages=[f"a-part_{part}" for part in range(n_parts)],
        within=[f"input/zip.{part}" for part in range(n_parts)],
        install="a-part-0 to -2",
        sha256=hashlib.sha256(whole).hexdigest(),
        sizes={name: len(content) for name, content in files.items()},
    )
