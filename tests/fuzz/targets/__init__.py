"""The decoders and parsers that are fuzzed, in modules by what they need to be imported."""

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from tests.fuzz.engine import Target

GROUPS: Final = ("wire", "log", "text", "requests", "reads", "indexes", "store", "imports")


def targets(group: str) -> Mapping[str, Target]:
    """The targets of a group by name, in their order."""
    found: list[Target] = import_module(f"tests.fuzz.targets.{group}").TARGETS
    return {target.name: target for target in found}
