"""`quantdrift report --card`: what quantization changed, for the card of a model on the Hugging Face hub."""

from pathlib import Path

from quantdrift.cli.options import RUNS, argument, option, prints
from quantdrift.show.output import Output


@prints("json")
def command(
    *,
    runs: list[Path] = argument(RUNS),
    base_model: str | None = option("ID: Id of the full-precision model on the hub; by default what the runs say."),
) -> Output:
    """Print what quantization changed as a model card: a section of README.md, and metadata.

    The runs are of one model, on any data, with any schemes: a row each. The metadata (base_model, and results in the
    model-index) are what the Hugging Face hub reads.

    For example: quantdrift report --card RUN > README.md

    More: docs/guides/report.md
    """
    from quantdrift.features.card.card import card_of
    from quantdrift.runs.folder import find_runs

    card = card_of(find_runs(runs), base_model=base_model)
    return Output(data={"section": card.section, "metadata": dict(card.metadata)}, text=card.text)
