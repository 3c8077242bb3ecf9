"""The random number behind one draw: a hash of what names the draw, so there is no generator to keep or to move."""

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int, choice: int) -> float:
    """A number in [0, 1), a multiple of 2**-53: always the same for the same draw.

    Args:
        seed: any whole number; counts modulo 2**64.
        position: of the drawn token in its request, prompt included.
        choice: index among the choices of one API request.
    """
    state = _mix(seed & _MASK)
    state = _mix(state ^ _mix(position + 0x9E3779B97F4A7C15))
    state = _mix(state ^ _mix(choice + 0xD1B54A32D192ED03))
    return (state >> 11) * 2.0**-53


def _mix(value: int) -> int:
    """Spread a 64-bit number's bits over all of them; no two numbers give the same.

    Source:
        The finaliser of SplitMix64 in its variant 13; Steele, Lea and Flood 2014, "Fast splittable pseudorandom
        number generators", and Stafford 2011, "Better bit mixing".
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
