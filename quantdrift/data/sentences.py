"""Sentences of many kinds, for asking a model or a server when no texts are given."""

SENTENCES = (
    "The ferry to the island leaves twice a day.",
    "How do I return an item that I bought online?",
    "def mean(values): return sum(values) / len(values)",
    "Der Vertrag verlängert sich um ein Jahr, wenn er nicht gekündigt wird.",
    "Patients with a rash should stop taking the tablets and see a doctor.",
    "7 + 5 = 12, 9 - 4 = 5, 6 * 3 = 18",
    "salt",
    "El museo cierra los lunes; los demás días abre a las diez de la mañana.",
)
"""Texts whose embeddings identify a model. A server is recognized by them, so a changed list makes it a new server."""
