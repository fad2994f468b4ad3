"""Data that arms are compared on: folders in BEIR layout, and tasks that come along as entry points."""
