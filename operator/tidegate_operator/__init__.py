"""One loop: spec and observed give desired, and desired is applied."""
