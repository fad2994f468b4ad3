"""The data of small suites that use the plugin."""

from pathlib import Path

from support.beir_folder import write_beir_folder

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


def write_corpus(folder: Path) -> None:
    """Eight documents and a query to each, in BEIR layout."""
    write_beir_folder(folder, QUERIES, DOCUMENTS, {name: [name] for name in QUERIES})
