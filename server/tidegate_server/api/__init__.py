"""HTTP: the OpenAI-compatible wire types, routes and event stream, and the ops port."""
