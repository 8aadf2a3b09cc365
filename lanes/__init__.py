"""Retrieval lanes: each scores every skill of a taxonomy for every query."""
