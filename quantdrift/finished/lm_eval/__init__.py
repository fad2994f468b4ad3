"""The samples that lm-eval logs, of two arms, joined."""
