"""What the Makefile calls: one small program a target."""
