"""The data that arms are compared on: folders in BEIR layout, labelled inputs, and tasks from entry points."""
