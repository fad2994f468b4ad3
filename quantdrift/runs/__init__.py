"""Run folders: what was measured, of whom, and which inputs changed."""
