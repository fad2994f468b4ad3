"""A candidate as a folder that can be deployed."""
