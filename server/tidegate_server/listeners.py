"""Listening sockets for the two ports, made first so that a taken port stops the start before anything is loaded."""

import errno
import socket

from tidegate_server.errors import InvalidSetting
from tidegate_server.settings import variable_of

BACKLOG = 2048


def bind(host: str, port: int, flag: str) -> socket.socket:
    """A TCP socket that listens: connections wait in it until somebody answers.

    Raises:
        InvalidSetting: the port is taken or the address is not this machine's; names the flag.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: what can be no name at all, such as a..b
        raise _foreign_host(host, error) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # Now, not when the server answers: until one of them listens, two servers can be bound to one port.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _foreign_host(host, error) from None
        raise InvalidSetting(
            flag, f"{host}:{port} cannot be used: {error.strerror}; choose another with {flag} or {variable_of(flag)}"
        ) from None
    return listener


def _foreign_host(host: str, error: OSError | UnicodeError) -> InvalidSetting:
    because = error.strerror if isinstance(error, OSError) else "it can be no name"
    return InvalidSetting("--host", f"{host!r} is not an address of this machine: {because}")
