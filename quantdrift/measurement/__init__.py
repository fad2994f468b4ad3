"""From a pair and its inputs to evidence: both arms embed, are scored, and labels and noise join.

`retrieval` does it once over a whole corpus, `job` makes a run folder of it; `classification` and
`classification_job` do it for labelled inputs, `contrast` reads these both ways. `encoding` and
`steps` are for whoever puts the steps together in another way. Embeddings are kept and shared by
`embeddings`.
"""
