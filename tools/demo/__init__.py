"""`make demo`: from a chart to a streamed chat on a real Kubernetes, showing each stage and its time."""
