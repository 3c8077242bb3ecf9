"""`tidegate bench`: send a workload to our engine, or to any OpenAI-compatible endpoint, and tell what came of it."""
