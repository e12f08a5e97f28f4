"""The version of this package, which anything in it may import."""

__version__ = "0.1.0"
