"""Criteria of bit allocation: one file per rule, found by the name a scheme gives."""

from quantdrift.allocation.criteria.registry import criterion

__all__ = ["criterion"]
