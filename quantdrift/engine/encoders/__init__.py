"""One module for each kind of model that a pair can be made of."""
