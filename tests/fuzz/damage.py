"""Ways to damage the content of a file; all of them draw from a seeded generator."""

import gzip
import lzma
import random
import re
from collections.abc import Callable

WRAPPED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lambda content: lzma.compress(content, preset=0),
}
"""Suffix -> how a file of that suffix is compressed."""
NUMBER = re.compile(rb"-?\d+(\.\d+)?")
NUMBERS = (
    *(b"1e30", b"-1e39", b"1e308", b"1e999", b"nan", b"inf", b"1_0", b"0x10", b"1.x6", b""),
    *(b"9" * 5000, b"99999999999999999999", b"-0", b"?", b"0", "\u0661".encode(), b"1e-999"),
)
PIECES = (
    *(b"\xef\xbb\xbf", b"\0", b"\r", b"\n", b",", b":", b";", b"'", b'"', b"\\", b"\\n", b" "),
    *(b"@", b"#", b"%", b"{", b"}", b"@data\n", b"?", b"\xff", b"\xc3\xa9", b"\x1a"),
    b"\xe2\x80\xa8",
)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """The content with one change, of those that hurt text."""
    at, lines = draw.randrange(len(content) + 1), content.splitlines(keepends=True)
    line = draw.randrange(len(lines)) if lines else 0
    match draw.randrange(12):
        case 0 if content:
            at = min(at, len(content) - 1)
            return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
        case 1:
            return content[:at] + draw.randbytes(draw.randint(1, 4)) + content[at:]
        case 2 | 3:
            return content[:at] + draw.choice(PIECES) + content[at:]
        case 4:
            return content[:at] + content[at + draw.randint(1, 8) :]
        case 5:
            return content[:at]
        case 6 if lines:
            return b"".join([*lines[: line + 1], *lines[line:]])
        case 7 if lines:
            return b"".join([*lines[:line], *lines[line + 1 :]])
        case 8:
            draw.shuffle(lines)
            return b"".join(lines) if draw.random() < 0.2 else content + content
        case 9 | 10:
            places = list(NUMBER.finditer(content))
            if places:
                place = draw.choice(places)
                return content[: place.start()] + draw.choice(NUMBERS) + content[place.end() :]
        case 11:
            if draw.random() < 0.8:
                return content[:at] + draw.choice(PIECES) * draw.randint(2, 20_000) + content[at:]
            text = content.decode(errors="replace")
            encoding = draw.choice(("utf-16", "utf-16-le", "utf-32", "cp037", "utf-8-sig"))
            return text.encode(encoding, errors="replace")
    return content


def corrupted(content: bytes, draw: random.Random) -> bytes:
    """Up to three changes that hurt binary files: most are a byte of another value."""
    for _ in range(draw.randint(1, 3)):
        if not content or draw.random() < 0.35:
            content = mutated(content, draw)
            continue
        # Headers and ends are short: damage there reaches further.
        at = draw.choice((draw.randrange(len(content)), draw.randrange(min(200, len(content)))))
        value = draw.choice((0, 1, 255, content[at] ^ 1 << draw.randrange(8), draw.randrange(256)))
        size = 20 if value == 0 and draw.random() < 0.2 else 1
        content = content[:at] + bytes([value]) * size + content[at + size :]
    return content
