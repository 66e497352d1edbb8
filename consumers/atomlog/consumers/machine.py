"""The world outside a store, as ports, and the names of the files in a store's directory that a user handles."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from atomlog.kernel.ports import Clock, Files, Randomness, Workers
from atomlog.kernel.system import SystemClock, SystemFiles, SystemRandomness, ThreadWorkers

MASTER_KEY: Final = "master.key"
NODE_PEM: Final = "node.pem"
KAFKA_TOML: Final = "kafka.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The world outside the store."""

    files: Files = field(default_factory=SystemFiles)
    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=SystemRandomness)
    workers: Workers = field(default_factory=ThreadWorkers)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)  # has passwords
