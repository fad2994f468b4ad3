"""The built-in engines of approximate search, one for each module."""
