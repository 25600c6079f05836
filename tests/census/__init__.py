"""A census of the model types that transformers knows: a small random model of each, and how to run it."""
