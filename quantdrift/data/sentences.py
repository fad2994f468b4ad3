"""Sentences of all kinds: what a model or a server is asked where nobody named texts."""

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
"""Texts that tell which model answers. Servers that a run has seen are known by them: another list is other servers."""
