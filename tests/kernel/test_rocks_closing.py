"""Closing a RocksDB while another thread syncs it: the binding alone would refuse to close."""

import threading
from contextlib import suppress
from pathlib import Path

from atomlog.kernel.rocks import open_primary


def test_closing_waits_for_a_sync_in_another_thread(tmp_path: Path) -> None:
    for _ in range(20):
        kv = open_primary(str(tmp_path / "db"), block_cache_bytes=1 << 20)
        kv.write([(bytes((number,)), bytes(200_000)) for number in range(20)])
        started = threading.Event()

        def sync(kv: object = kv, started: threading.Event = started) -> None:
            started.set()
            with suppress(Exception):  # the close may have come first
                kv.sync()  # type: ignore[attr-defined]

        syncing = threading.Thread(target=sync)
        syncing.start()
        started.wait()
        kv.close()
        syncing.join()
