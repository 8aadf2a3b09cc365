"""Graded labels: those of our own making, and the tools that make them."""
