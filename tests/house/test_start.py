"""What starting a command costs: what it does not need is not loaded."""

import subprocess
import sys

import pytest
from click import Context

from atomlog.consumers.cli.main import COMMANDS, main

ENGINES = ("cryptography", "fastavro", "hnswlib", "numpy", "pyroaring", "rocksdict", "sqlite3")


def loaded(code: str) -> set[str]:
    """The outside libraries that a fresh interpreter has loaded after running this."""
    code = f"import sys\n{code}\nprint('loaded', *(name for name in {ENGINES!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_version_and_help_load_no_engine(word: str) -> None:
    call = f"from atomlog.consumers.cli.main import main\nmain([{word!r}], standalone_mode=False)"
    assert loaded(call) == set()


def test_a_store_that_nobody_asks_for_vectors_loads_neither_numpy_nor_hnswlib() -> None:
    found = loaded("import atomlog.client")
    assert {"hnswlib", "numpy"} & found == set()
    assert "rocksdict" in found  # the probe does see what is loaded


def test_an_embedded_store_loads_nothing_of_a_shared_one() -> None:
    code = "import atomlog.consumers.cli.reads, atomlog.client as client, sys, tempfile\n"
    code += "with tempfile.TemporaryDirectory() as path, client.Store.open(path) as store: store.status()\n"
    code += "print(*(name for name in sys.modules if 'kafka' in name or '.cluster' in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_list_of_commands_says_of_each_what_it_says_itself() -> None:
    context = Context(main)
    for name, (module, text) in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(1_000) == text
        assert (command.callback or main).__module__.endswith(f".cli.{module}")
    assert main.get_command(context, "nothing") is None
