"""The one import the server uses: each op bound to its Triton kernel or to its torch reference, once, at start."""
