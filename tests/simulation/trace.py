"""Everything that happened in a simulation, in order: the same seed gives the same bytes."""

import hashlib


class Trace:
    """Lines. Nothing in them may come from outside the seed: no address, no number of a process, no real time."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.add = self.lines.append

    def digest(self) -> str:
        """SHA-256 over all lines, in hexadecimal."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()


def first_difference(one: list[str], other: list[str]) -> str | None:
    """Where two traces part, with what came before; None when they are equal."""
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            before = "\n".join(one[max(0, number - 5) : number])
            return f"line {number}:\n{before}\n< {left}\n> {right}"
    return None if len(one) == len(other) else f"one has {len(one)} lines, the other {len(other)}"
