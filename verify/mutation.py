"""Mutations of a good input: bits, bytes and pieces of it are changed at random."""

import random

# Values that parsers stumble over, each for its own reason.
NUMBERS = (
    b"\xb2",
    b"\xd9\xa3",
    b"9" * 5000,
    b"9" * 20,
    b"-1",
    b"1e400",
    b"NaN",
    b"1_0",
    b"0x1",
    b"",
)
TOKENS = (
    b"", b"\0", b"\n", b"\r\n\r\n", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"=", b"%",
    b"'", b"null", b"true", b"NaN", b"Infinity", b"-Infinity", b"-0", b"1e400", b"-1e400",
    b"9" * 20, b"9" * 5000, b"-1", b"2147483648", b"9223372036854775808", b"1_000", b"0x10",
    b"\\ud800", b"\\u0000", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\xb2", b"\xd9\xa3",
    b"\xe2\x80\xae", b"\x1b[2J", b"a" * 70_000, b"[" * 3000, b'{"a":' * 2000, b"[" * 200_000,
    b"../../etc/passwd", b"sqlite:///", b"postgresql://", b"content-length: 5",
       b"1970-01-01T00:00:00Z", b"+1e308d", b"+nand", b"infs", b"1d",
)  # fmt: skip


def mutated(seed: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """A mutation of a good input, sometimes very different from it."""
    found = bytearray(seed)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        place = chance.randrange(len(found) + 1)
        match chance.randrange(9):
            case 0 if found:
                found[min(place, len(found) - 1)] ^= 1 << chance.randrange(8)
            case 1 if found:
                found[min(place, len(found) - 1)] = chance.randrange(256)
            case 2:
                del found[place : place + chance.choice((1, 2, 4, 16, 1000))]
            case 3:
                found[place:place] = bytes(chance.randrange(256) for _ in range(4))
            case 4:
                found[place : place + chance.randrange(4)] = chance.choice(TOKENS)
            case 5:
                found[place:place] = found[place : place + chance.randrange(1, 64)]
            case 6:
                other = chance.choice(others)
                found[place:] = other[chance.randrange(len(other) + 1) :]
            case 7:
                _replace_a_number(found, chance)
            case _:
                found[place:place] = chance.choice(TOKENS)
    return bytes(found)


def _replace_a_number(found: bytearray, chance: random.Random) -> None:
    digits = [place for place, byte in enumerate(found) if 48 <= byte <= 57]
    if digits:
        place = chance.choice(digits)
        found[place : place + 1] = chance.choice(NUMBERS)
