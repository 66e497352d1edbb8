"""A real consuming process, asked by a real client."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atomlog.client import Store
from atomlog.consumers.metrics import METRICS
from tests.acceptance.writing import source
from tests.house.tree import ROOT
from tests.metrics.test_metrics import value

NAMES = ("ids", "relations")


@contextmanager
def consuming(store: Path, *more: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "atomlog.consumers.cli", "consume", *NAMES, "--store", str(store), *more]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: "subprocess.Popen[str]", name: str) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        assert list(event)[:3] == ["time", "level", "event"]
        if event["event"] == name:
            return event
    raise AssertionError(f"the process ended without saying {name}")


def scraped(endpoint: str) -> bytes:
    with urllib.request.urlopen(endpoint, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        page: bytes = answer.read()
        return page


def test_what_a_consumer_shows_is_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Store.init(path)
    with consuming(path, "--metrics", "127.0.0.1:0") as process:
        endpoint = heard(process, "metrics")["endpoint"]
        with Store.open(path, follow=False, projections=NAMES) as store:
            for number in range(5):
                store.write({"space": "s", "idempotency_key": str(number), "changes": [source(f"text {number}")]})
            store.wait_until_current(60)
            end = max(record["position"] for record in store.log_dump()) + 1
        page = scraped(endpoint)
        for name in NAMES:
            assert value(page, "projection_position", projection=name, partition="0") == end
            assert value(page, "projection_lag_records", projection=name, partition="0") == 0
            assert value(page, "projection_health", projection=name, health="OK") == 1
            assert value(page, "projection_bytes_per_revision", projection=name) > 0
        assert value(page, "disk_free_bytes") > 0
        assert value(page, "events_total", event="consuming") == 1
        families = {line.split()[2] for line in page.decode().splitlines() if line.startswith("# TYPE ")}
        assert families == {spec.name for spec in METRICS.values()}
        assert b"text" not in page.replace(b"text/plain", b"")
        process.send_signal(signal.SIGTERM)
        assert heard(process, "stopping")["level"] == "info"
        assert process.wait(30) == 0


def test_an_address_that_is_none_is_refused_before_anything_is_followed(tmp_path: Path) -> None:
    Store.init(tmp_path / "store")
    command = [sys.executable, "-m", "atomlog.consumers.cli", "consume", "ids", "--store", str(tmp_path / "store")]
    done = subprocess.run([*command, "--metrics", "nowhere"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "metrics" in done.stderr
    assert not (tmp_path / "store" / "projections").exists()
