"""A real Kubernetes on one bare Linux machine, for tests and for the demo; standard library only."""
