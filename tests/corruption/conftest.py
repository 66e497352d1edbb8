import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corruption.probe import probe
from tests.corruption.store import Sound, make
from tests.corruption.worker import scratch_directory


@pytest.fixture(scope="session")
def sound() -> Iterator[Sound]:
    """The store that copies are damaged of, and `truth.json`, what it answers undamaged."""
    with tempfile.TemporaryDirectory(dir=scratch_directory()) as root:
        made = make(Path(root))
        shutil.copytree(made.now, Path(root) / "copy")
        truth = asyncio.run(probe(Path(root) / "copy", made.asked)).to_dict()["answers"]
        refused = {name: answer for name, answer in truth.items() if "body" not in answer}
        assert not refused
        assert len({answer["body"] for answer in truth.values()}) > 10
        (Path(root) / "truth.json").write_text(json.dumps(truth))
        yield made
