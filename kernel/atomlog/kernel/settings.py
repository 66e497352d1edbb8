"""Every setting, its unit and default. docs/settings.md describes each; a test holds the two together."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from atomlog.kernel.errors import fail
from atomlog.kernel.ids import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Values of one running process. Each can be set by `ATOMLOG_<NAME IN CAPITALS>` or in Python."""

    group_bytes_max: int = 1024 * 1024
    queue_requests_max: int = 10_000
    queue_bytes_max: int = 64 * 1024 * 1024
    write_timeout_ms: int = 30_000
    read_timeout_ms: int = 10_000
    owner_socket_timeout_ms: int = 30_000
    segment_bytes: int = 128 * 1024 * 1024
    clock_skew_warn_ms: int = 5_000
    clock_skew_stop_ms: int = 60_000
    sync_interval_ms: int = 200
    sync_records: int = 5_000
    follow_poll_ms: int = 10
    watchdog_ms: int = 30_000
    apply_retries: int = 3
    apply_retry_ms: int = 100
    disk_reserve_bytes: int = 256 * 1024 * 1024
    block_cache_bytes: int = 64 * 1024 * 1024
    postings_window: int = 1_000_000
    shard_dead_share_max: float = 0.3
    embed_batch: int = 64
    embed_retries: int = 3
    page_limit: int = 100
    page_limit_max: int = 1_000
    page_bytes_max: int = 4 * 1024 * 1024
    receipt_flush_ms: int = 200
    receipt_retention_days: int = 90
    cursor_ttl_ms: int = 3_600_000
    key_wait_ms: int = 2_000
    key_audit_ms: int = 60_000
    lease_ms: int = 5_000
    heartbeat_ms: int = 1_000
    standby_backoff_ms: int = 1_000
    claim_lag_records: int = 1_000
    claim_lag_ms: int = 2_000
    terms_per_minute_max: int = 30
    kafka_timeout_ms: int = 10_000
    metadata_refresh_ms: int = 30_000
    node_call_timeout_ms: int = 30_000
    inbox_requests_max: int = 512
    inbox_give_up_ms: int = 60_000

    def __post_init__(self) -> None:
        """INVALID_INPUT names each value that is no number of its kind, or out of range."""
        wrong = [field.name for field in fields(self) if not _is_right(getattr(self, field.name), field.type)]
        if wrong:
            details = [
                {"path": name, "code": "INVALID_INPUT", "message": f"{shown(getattr(self, name))} is out of range"}
                for name in wrong
            ]
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise fail("INVALID_INPUT", f"setting {wrong[0]}: {details[0]['message']}{more}", details=details)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Settings":
        """Defaults overlaid with `ATOMLOG_*` variables; INVALID_INPUT names a value that cannot be read."""
        changes: dict[str, int | float] = {}
        for field in fields(cls):
            raw = environment.get(f"ATOMLOG_{field.name.upper()}")
            if raw is None:
                continue
            number = float if field.type in (float, "float") else int
            try:
                value = number(raw)
            except ValueError:
                raise fail(
                    "INVALID_INPUT", f"ATOMLOG_{field.name.upper()}={shown(raw)} is no {number.__name__}"
                ) from None
            if not _is_right(value, field.type):
                raise fail("INVALID_INPUT", f"ATOMLOG_{field.name.upper()}={shown(raw)} is out of range")
            changes[field.name] = value
        return replace(cls(), **changes)  # type: ignore[arg-type]


def _is_right(value: object, kind: object) -> bool:
    """A number of the field's kind in 0 ≤ value < 2^53. True and False are none."""
    if type(value) is int:
        return 0 <= value < 2**53
    return kind in (float, "float") and isinstance(value, float) and 0 <= value < 2**53
