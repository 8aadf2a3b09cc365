"""Training: lanes, rerankers, fusion and labels."""
