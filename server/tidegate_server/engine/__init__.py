"""Decides what each step computes, and runs the steps in a process of its own."""
