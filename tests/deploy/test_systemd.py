"""deploy/systemd: each unit has only directives that systemd knows, each once, and starts a command that parses."""

import shlex
from pathlib import Path

import pytest

from tests.deploy.command_lines import check_command_line
from tests.house.tree import ROOT

UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
DIRECTIVES = {
    "Unit": {"Description", "Wants", "After", "StartLimitIntervalSec", "StartLimitBurst"},
    "Service": {
        *("Type", "User", "Group", "UMask", "EnvironmentFile", "ExecStart", "KillSignal", "TimeoutStopSec", "Restart"),
        *("RestartSec", "RestartPreventExitStatus", "StateDirectory", "StateDirectoryMode", "LimitNOFILE", "LimitCORE"),
        *("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectSystem", "ProtectHome", "ProtectClock"),
        *("ProtectKernelTunables", "ProtectKernelModules", "ProtectControlGroups", "RestrictAddressFamilies"),
        *("RestrictSUIDSGID", "LockPersonality", "CapabilityBoundingSet"),
    },
    "Install": {"WantedBy"},
}
# What the environment file of an instance may say.
GIVEN = {
    "${ATOMLOG_LISTEN}": ["10.0.0.7:7420"],
    "$ATOMLOG_PROJECTIONS": ["relations", "postings"],
    "$ATOMLOG_OPTIONS": ["--partitions", "0-7", "--metrics", "9464"],
}


def parsed(unit: Path) -> dict[str, dict[str, str]]:
    """Sections of directives; fails on anything else. A directive may stand once."""
    sections: dict[str, dict[str, str]] = {}
    section = ""
    for number, line in enumerate(unit.read_text(encoding="utf-8").splitlines(), 1):
        where = f"{unit.name}:{number}: {line}"
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = line.strip("[]")
            assert section in DIRECTIVES, where
            assert section not in sections, where
            sections[section] = {}
            continue
        name, equals, value = line.partition("=")
        assert equals, where
        assert name in DIRECTIVES[section], where
        assert name not in sections[section], where
        sections[section][name] = value
    return sections


def test_there_are_both_units() -> None:
    assert [unit.name for unit in UNITS] == ["atomlog-consume@.service", "atomlog-kernel@.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_parses(unit: Path) -> None:
    program, *words = shlex.split(parsed(unit)["Service"]["ExecStart"].replace("%i", "a1"))
    assert program == "/opt/atomlog/bin/atomlog"
    argv = [word for given in words for word in GIVEN.get(given, [given])]
    assert argv[0] == unit.name.removeprefix("atomlog-").partition("@")[0]
    assert not [word for word in argv if "$" in word]
    check_command_line(argv)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_stops_with_sigterm_and_is_not_restarted_when_an_operator_is_needed(unit: Path) -> None:
    service = parsed(unit)["Service"]
    assert service["KillSignal"] == "SIGTERM"
    assert service["Restart"] == "always"
    assert service["RestartPreventExitStatus"].split() == ["2", "70"]
    assert int(service["TimeoutStopSec"]) > 30, "write_timeout_ms must pass before it is killed"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_may_write_to_its_state_directory_alone(unit: Path) -> None:
    service = parsed(unit)["Service"]
    assert (service["ProtectSystem"], service["ProtectHome"]) == ("strict", "yes")
    assert (service["StateDirectory"], service["StateDirectoryMode"], service["UMask"]) == ("atomlog", "0700", "0077")
    assert "--store /var/lib/atomlog/%i" in service["ExecStart"]


@pytest.mark.parametrize("line", ["Exec=x", "[Servic]", "User=a\nUser=b", "no directive"])
def test_what_is_no_unit_is_found(tmp_path: Path, line: str) -> None:
    unit = tmp_path / "x.service"
    unit.write_text(f"[Service]\n{line}\n", encoding="utf-8")
    with pytest.raises(AssertionError):
        parsed(unit)
