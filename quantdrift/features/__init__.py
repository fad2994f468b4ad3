"""Features: each a folder with its command, its work and its page, which the core does not import."""
