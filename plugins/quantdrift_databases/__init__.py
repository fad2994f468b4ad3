"""Vector databases as indexes, one module for each engine, and existing collections, in `collection`.

They import `quantdrift.parts` alone, as a package of anybody else would; pyproject.toml has their entry points.
"""
