"""Avro's variable-length integers and length-prefixed bytes, read within bounds.

Every decoder of this package goes through these few functions, so that a length that lies, an over-long
number or a count that could not fit into the bytes left is found here, before anything is allocated.
"""

from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")


class WireError(ValueError):
    """Bytes that are not what their schema says. The message names the field and the offset."""


LONG_BYTES_MAX: Final = 10


def write_long(value: int) -> bytes:
    """Zigzag varint of a signed 64-bit integer (1 to 10 bytes); ValueError for a wider one."""
    if 0 <= value < 64:
        return _SMALL[value]
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} is no 64-bit integer")
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


_SMALL: Final = tuple(bytes([n << 1]) for n in range(64))


def read_long(buf: bytes, at: int, field: str) -> tuple[int, int]:
    """The integer at `at` and the offset after it.

    Raises:
        WireError: it is cut off, wider than 64 bits, or longer than its shortest form.
    """
    end = len(buf)
    shift = zigzag = 0
    start = at
    while True:
        if at >= end:
            raise WireError(f"{field}: number is cut off at byte {start}")
        byte = buf[at]
        at += 1
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise WireError(f"{field}: number is longer than {LONG_BYTES_MAX} bytes at byte {start}")
    if zigzag > 0xFFFF_FFFF_FFFF_FFFF or (byte == 0 and at - start > 1):
        raise WireError(f"{field}: number is not in its shortest 64-bit form at byte {start}")
    return (zigzag >> 1) ^ -(zigzag & 1), at


def read_int(buf: bytes, at: int, field: str) -> tuple[int, int]:
    """Like `read_long`, for a field that holds 32 bits."""
    value, stop = read_long(buf, at, field)
    if not -(1 << 31) <= value < 1 << 31:
        raise WireError(f"{field}: {value} is no 32-bit integer at byte {at}")
    return value, stop


def write_int(value: int) -> bytes:
    """Like `write_long`, for a field that holds 32 bits."""
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{value} is no 32-bit integer")
    return write_long(value)


def write_bytes(value: bytes) -> bytes:
    return write_long(len(value)) + value


def write_text(value: str) -> bytes:
    return write_bytes(value.encode())


def read_bytes(buf: bytes, at: int, field: str) -> tuple[bytes, int]:
    """The length-prefixed bytes at `at` and the offset after them; WireError when they do not fit."""
    size, at = read_long(buf, at, field)
    stop = at + size
    if size < 0 or stop > len(buf):
        raise WireError(f"{field}: {size} bytes do not fit into the {len(buf) - at} left at byte {at}")
    return buf[at:stop], stop


def read_text(buf: bytes, at: int, field: str) -> tuple[str, int]:
    raw, stop = read_bytes(buf, at, field)
    try:
        return raw.decode(), stop
    except UnicodeDecodeError as error:
        raise WireError(f"{field}: not UTF-8 at byte {at + error.start}") from None


def read_fixed(buf: bytes, at: int, size: int, field: str) -> tuple[bytes, int]:
    stop = at + size
    if stop > len(buf):
        raise WireError(f"{field}: {size} bytes do not fit into the {len(buf) - at} left at byte {at}")
    return buf[at:stop], stop


def read_bool(buf: bytes, at: int, field: str) -> tuple[bool, int]:
    if at >= len(buf) or buf[at] > 1:
        raise WireError(f"{field}: not a boolean at byte {at}")
    return buf[at] == 1, at + 1


def write_array(items: list[bytes]) -> bytes:
    """One block of encoded items and the closing zero, as fastavro writes it."""
    if not items:
        return b"\x00"
    return write_long(len(items)) + b"".join(items) + b"\x00"


def read_count(buf: bytes, at: int, item_bytes_min: int, field: str) -> tuple[int, int]:
    """The count of an array's next block; 0 ends the array.

    Every item takes at least `item_bytes_min` (≥ 1) bytes, so a count beyond the bytes left is refused.
    Only the plain block form is accepted: the negative one, with a byte size, is never written by us.
    """
    count, at = read_long(buf, at, field)
    if count < 0 or count * item_bytes_min > len(buf) - at:
        raise WireError(f"{field}: {count} items do not fit into the {len(buf) - at} bytes left at byte {at}")
    return count, at


def read_array(
    buf: bytes, at: int, item_bytes_min: int, field: str, read_item: Callable[[bytes, int], tuple[T, int]]
) -> tuple[tuple[T, ...], int]:
    """The items of every block of an array, and the offset after its closing zero. `read_item`: as a reader here."""
    items: list[T] = []
    while True:
        count, at = read_count(buf, at, item_bytes_min, field)
        if count == 0:
            return tuple(items), at
        for _ in range(count):
            item, at = read_item(buf, at)
            items.append(item)
