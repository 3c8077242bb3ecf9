"""Bound sockets for the two ports, made first so that a taken port stops the start before anything is loaded."""

import socket

from tidegate_server.errors import InvalidSetting

BACKLOG = 2048


def bind(host: str, port: int, flag: str) -> socket.socket:
    """A bound TCP socket that does not listen yet.

    Raises:
        InvalidSetting: the port is taken or the address is not this machine's; names the flag.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
    except socket.gaierror as error:
        raise InvalidSetting("--host", f"{host!r} is not an address of this machine: {error.strerror}") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InvalidSetting(flag, f"{host}:{port} cannot be used: {error.strerror}; choose another") from None
    return listener
