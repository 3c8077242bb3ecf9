"""One pod: HTTP in, tokens out."""
