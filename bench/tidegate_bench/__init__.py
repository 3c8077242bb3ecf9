"""Measures OpenAI-compatible servers, ours and its peers, with the same requests on the same machine."""
