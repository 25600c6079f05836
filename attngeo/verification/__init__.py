"""Checks against the running model: the weights that attngeo reads are those that the model multiplies."""
