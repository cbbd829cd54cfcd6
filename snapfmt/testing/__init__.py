"""Helpers for tests of snapfmt and of what is built on it: a suite that every storage backend
must pass, strategies for Hypothesis, exact comparison, corruption and crash injection.

Needs the extra `test`.
"""
