"""Tables, lines and JSON: what a command shows, in a terminal, in Markdown or as data."""
