"""Damage to files."""


def flip(path, *places, bit=1):
    """Change a bit of each of these bytes of a file."""
    content = bytearray(path.read_bytes())
    for place in places:
        content[place] ^= bit
    path.write_bytes(content)
