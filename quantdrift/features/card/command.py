"""`quantdrift report --card`: write the card of a quantized model on the Hugging Face hub."""

from pathlib import Path

from quantdrift.cli.options import RUNS, argument, option, prints
from quantdrift.show.output import Output


@prints("json")
def command(
    *,
    runs: list[Path] = argument(RUNS),
    base_model: str | None = option("ID: Id of the full-precision model on the hub; by default that in the runs."),
) -> Output:
    """Print a model card with what quantization changed: a section of README.md, and metadata.

    The runs are of one model, on any data and with any schemes; each becomes a row of the table. The Hugging Face hub
    reads the metadata: base_model.

    For example: quantdrift report --card RUN > README.md

    More: docs/guides/report.md
    """
    from quantdrift.features.card.card import card_of
    from quantdrift.runs.folder import find_runs

    card = card_of(find_runs(runs), base_model=base_model)
    return Output(data={"section": card.section, "metadata": dict(card.metadata)}, text=card.text)
