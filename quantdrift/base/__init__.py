"""The modules that all others build on: errors, text, records, cached files, progress. No torch."""
