"""Embedding models behind an OpenAI-compatible server."""
