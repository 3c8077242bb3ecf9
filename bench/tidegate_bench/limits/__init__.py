"""Bounds that our own pod keeps whatever the peers do: start, memory, Python's share of a step, few or shared CPUs."""
