"""Weights in packed form, a module for each kind of arithmetic, and the store that decodes them."""
