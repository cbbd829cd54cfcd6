"""Phase one and two of a save: parts, then the publication."""
