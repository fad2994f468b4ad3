"""quantdrift inside beir."""
