"""Tensors in, tensors out; knows nothing of requests."""
