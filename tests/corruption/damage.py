"""Ways to damage one file of a directory."""

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """`at`: the bit to flip, or the length to cut to. `other`: the file to exchange it with.

    `read_only`: how the whole store is opened afterwards.
    """

    path: str
    manner: str
    at: int = 0
    other: str = ""
    read_only: bool = False

    def __str__(self) -> str:
        how = {"flip": f" bit {self.at}", "cut": f" to {self.at}", "exchange": f" with {self.other}"}
        return f"{self.manner} {self.path}{how.get(self.manner, '')}"

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Damage":
        return cls(**found)

    def do(self, directory: Path, older: Path) -> None:
        path = directory / self.path
        if self.manner == "flip":
            raw = bytearray(path.read_bytes())
            raw[self.at // 8] ^= 1 << self.at % 8
            path.write_bytes(raw)
        elif self.manner == "cut":
            path.write_bytes(path.read_bytes()[: self.at])
        elif self.manner == "delete":
            path.unlink()
        elif self.manner == "older":
            shutil.copyfile(older / self.path, path)
        else:
            other = directory / self.other
            one, two = path.read_bytes(), other.read_bytes()
            path.write_bytes(two)
            other.write_bytes(one)


def damages(
    store: Path, older: Path, path: str, alike: Sequence[str], *, flips: int, cuts: int, chance: random.Random
) -> Iterator[Damage]:
    """Damages of one file: every bit and length of a small one, a spread over a large one, and the others once.

    `alike` are the files of the same kind, to exchange it with; those before it have had their turn.
    """
    raw = (store / path).read_bytes()
    for at in _spread(len(raw) * 8, flips, chance):
        yield Damage(path=path, manner="flip", at=at)
    for at in _spread(len(raw), cuts, chance):
        yield Damage(path=path, manner="cut", at=at)
    yield Damage(path=path, manner="delete")
    if (older / path).exists() and (older / path).read_bytes() != raw:
        yield Damage(path=path, manner="older")
    for other in alike:
        if other > path and (store / other).read_bytes() != raw:
            yield Damage(path=path, manner="exchange", other=other)


def _spread(size: int, count: int, chance: random.Random) -> list[int]:
    """`count` of the numbers below `size`, one at random in each equal part, the first and the last among them."""
    if size <= count:
        return list(range(size))
    parts = [(size * n // count, size * (n + 1) // count) for n in range(count)]
    return sorted({0, size - 1, *(chance.randrange(low, high) for low, high in parts)})
