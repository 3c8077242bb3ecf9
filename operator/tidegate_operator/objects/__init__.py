"""One builder per Kubernetes kind: the resource in, a manifest out."""
