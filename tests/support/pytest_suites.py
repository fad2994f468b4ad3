"""Small suites that use the plugin, and what they are run with."""

import json
from importlib.metadata import entry_points
from pathlib import Path

DOCUMENTS = {
    "milk-1": "The cow is milked twice a day.",
    "milk-2": "Goats and sheep are kept for their milk.",
    "way-1": "Turn left at the church and walk to the railway station.",
    "way-2": "Trains to the coast depart from platform four.",
    "sky-1": "Tomorrow brings rain in the west and sun in the east.",
    "sky-2": "Fog is expected in the valleys until noon.",
    "bread-1": "Knead the dough and let it rise for an hour.",
    "bread-2": "Bread is baked in a hot oven with a little steam.",
}
QUERIES = {
    "milk-1": "Which animal gives milk?",
    "milk-2": "What else can be milked?",
    "way-1": "How do I get to the station?",
    "way-2": "Which platform for the coast?",
    "sky-1": "Will it rain tomorrow?",
    "sky-2": "Is it foggy this morning?",
    "bread-1": "How long does dough rise?",
    "bread-2": "How hot must the oven be?",
}


def _registered() -> bool:
    return any(entry.value == "quantdrift_pytest.plugin" for entry in entry_points(group="pytest11"))


PLUGIN = () if _registered() else ("-p", "quantdrift_pytest.plugin")
"""For an installation that was made before the plugin was."""


def write_corpus(folder: Path) -> None:
    """Eight documents and a query to each, in BEIR layout."""
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        lines = [json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    rows = [f"{key}\t{key}\t1\n" for key in QUERIES]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
