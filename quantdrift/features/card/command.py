"""`quantdrift report --card`: what quantization changed, for the card of a model on the Hugging Face hub."""

from pathlib import Path

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.records import read_bytes, whole_file
from quantdrift.cli.options import RUNS, argument, option, prints
from quantdrift.show.output import Output

_LARGEST = 8 << 20
"""Bytes of a README.md."""


@prints("json")
def command(
    *,
    runs: list[Path] = argument(RUNS),
    into: Path | None = option(
        "FILE: Put it into this README.md, in place of what an earlier call put there; all else stays, but comments "
        "in its metadata."
    ),
    base_model: str | None = option("ID: Id of the full-precision model on the hub; by default what the runs say."),
    name: str | None = option("NAME: Name of the quantized model in the metadata."),
    badge: bool = option("Begin with the verdict as an image, which readers load from img.shields.io.", default=False),
    metadata: bool = option("Also write the results into the metadata at the head of the file.", default=True),
) -> Output:
    """Write what quantization changed into a model card: a section of README.md, and metadata.

    The runs are of one model, on any data, with any schemes: a row each. The metadata (base_model, and results in the
    model-index) are what the Hugging Face hub reads. Without --into both are printed.

    For example: quantdrift report --card RUN --into README.md

    More: docs/guides/report.md
    """
    from quantdrift.features.card.card import card_of, put_into
    from quantdrift.runs.folder import find_runs

    card = card_of(find_runs(runs), base_model=base_model, name=name, badge=badge)
    data = {"section": card.section, "metadata": dict(card.metadata), "into": None if into is None else str(into)}
    if into is None:
        return Output(data=data, text=put_into("", card, metadata=metadata))
    before = _read(into)
    text = put_into(before, card, metadata=metadata)
    if text == before:
        return Output(data=data, next=[f"nothing to change: {into}"])
    with whole_file(into) as partial:
        partial.write_bytes(text.encode())
    return Output(data=data, next=[f"written: {into}"])


def _read(path: Path) -> str:
    """A README.md, empty where there is none."""
    try:
        return read_bytes(path, limit=_LARGEST).decode()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise QuantDriftError(f"{path} cannot be read: {error}; expected a README.md in UTF-8") from error
