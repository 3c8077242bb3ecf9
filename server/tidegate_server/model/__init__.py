"""A checkpoint as tensors, and one forward pass over a batch."""
