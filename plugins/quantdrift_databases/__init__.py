"""Vector databases as indexes, one engine a module, and collections that somebody filled, in `collection`.

They stand on `quantdrift.parts`, as a package of anybody else would; pyproject.toml has their entry points.
"""
