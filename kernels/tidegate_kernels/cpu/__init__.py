"""The ops for CPU in C, and their Python side."""
