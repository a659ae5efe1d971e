"""The version of this package, for modules that do not need the package's public names."""

__version__ = "0.2.0"
