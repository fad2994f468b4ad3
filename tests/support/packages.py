"""Packages of others, as pip would install them."""

from collections.abc import Mapping
from pathlib import Path


def install(
    site: Path, name: str, files: Mapping[str, str], points: Mapping[str, Mapping[str, str]], *, version: str = "1.0"
) -> None:
    """Write modules and the metadata that pip would write; entry points by group and name."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    listed = "".join(f"[{group}]\n" + "".join(f"{n} = {at}\n" for n, at in of.items()) for group, of in points.items())
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    for file, text in {**files, f"{info}/METADATA": about, f"{info}/entry_points.txt": listed}.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(text, encoding="utf-8")
