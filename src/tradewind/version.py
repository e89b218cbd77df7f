"""The version, in the one place from which the distribution's metadata and the command line take it."""

__version__ = "0.1.0"
