"""Bridges to torch and TransferQueue; each imports its library only when used."""
