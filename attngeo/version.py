"""The version of attngeo."""

__version__ = "0.4.0"
