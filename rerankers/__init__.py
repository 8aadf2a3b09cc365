"""Cross-encoder columns: each scores the pool of every query."""
