"""quantdrift inside lm-eval."""
