"""Show the output of a command: tables and sentences on a terminal, Markdown, JSON."""
