"""Two versions that never mix: the library's and the format's (spec/v1/03-layout.md)."""

__version__ = "0.1.0"
"""Version of this library."""

FORMAT_VERSION = 1
"""Major version of the format that this library writes."""

READABLE_FORMATS = frozenset({1})
"""Major versions of the format that this library reads."""
