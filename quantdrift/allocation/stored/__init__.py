"""allocation.json: what it holds, its file, and its use in a spec."""
