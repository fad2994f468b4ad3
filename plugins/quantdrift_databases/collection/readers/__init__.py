"""Readers of collections, one module for each kind that is not in the module of its engine."""
