"""The same queries against growing parts of one corpus: does its size change more answers?

`sweep` measures, `job` writes a run for each size, `effect` says what the size did.
"""
