"""Checks that the running model uses the weights that attngeo reads."""
