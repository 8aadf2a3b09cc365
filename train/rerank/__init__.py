"""What `train.rerankers` is made of: lists, losses, the network that scores pairs, and the training loop."""
