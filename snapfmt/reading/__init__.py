"""Readers for restore and audit: verified as read."""
