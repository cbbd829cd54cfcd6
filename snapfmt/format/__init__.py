"""The byte rules of the format: bytes in, values out, no I/O."""
