"""The version of attngeo."""

__version__ = "0.3.0"
