"""Names, ports and wire types that the server and the operator must agree on."""
