"""Our engine alone, in this process: short memory, a long prompt among decodes, and what scheduling costs in Python."""
