"""Java, Maven and the jars: what is missing, too old or wrong is said, and nothing is started."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy.kafka.__main__ import main
from deploy.kafka.errors import LauncherError, NotInstalled, WrongJars
from deploy.kafka.runtime import HERE, fetch, find_java, find_maven, missing, prepare, verify
from tests.deploy.processes import end, go_on, run_python, said, script
from tests.support.kafka import required_runtime

LISTED = (HERE / "sha256.txt").read_text(encoding="utf-8")
FETCH = """
import os, sys
from pathlib import Path
from deploy.kafka.runtime import fetch
print("ready", flush=True)
sys.stdin.readline()
fetch(Path(sys.argv[1]), os.environ)
print("fetched", flush=True)
"""


def only(*programs: Path) -> Mapping[str, str]:
    """An environment in which nothing else can be found."""
    return {"PATH": os.pathsep.join(str(program.parent) for program in programs), "HOME": "/nonexistent"}


def test_without_java_it_is_said_what_to_install() -> None:
    with pytest.raises(NotInstalled, match=r"no java was found; brokers need Java 17 or newer.*apt-get install"):
        find_java(only())


@pytest.mark.parametrize(("version", "number"), [("1.8.0_392", "8"), ("11.0.21", "11"), ("16-ea", "16")])
def test_an_old_java_is_named_with_its_version(tmp_path: Path, version: str, number: str) -> None:
    java = script(tmp_path / "java", f"echo 'openjdk version \"{version}\" 2021-04-20' >&2")
    with pytest.raises(NotInstalled, match=f"is Java {number}; brokers need 17 or newer"):
        find_java(only(java))


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_new_java_will_do(tmp_path: Path, version: str) -> None:
    java = script(tmp_path / "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")
    assert find_java(only(java)) == str(java)


def test_a_java_that_does_not_run_is_shown_with_what_it_says(tmp_path: Path) -> None:
    java = script(tmp_path / "java", "echo 'no runtime present' >&2; exit 1")
    with pytest.raises(NotInstalled, match="does not run: no runtime present"):
        find_java(only(java))


def test_the_java_of_java_home_comes_first(tmp_path: Path) -> None:
    old = script(tmp_path / "old/java", "echo 'version \"11\"' >&2")
    new = script(tmp_path / "home/bin/java", "echo 'version \"21\"' >&2")
    assert find_java({**only(old), "JAVA_HOME": str(tmp_path / "home")}) == str(new)


def test_without_maven_it_is_said_what_to_install_until_the_jars_are_there(tmp_path: Path) -> None:
    java = script(tmp_path / "bin/java", "echo 'version \"17\"' >&2")
    environment = {**only(java), "ATOMLOG_KAFKA_CACHE": str(tmp_path / "jars")}
    with pytest.raises(NotInstalled, match="no mvn was found; Maven fetches Apache Kafka the first time"):
        find_maven(environment)
    assert "no mvn was found" in (missing(environment) or "")
    (tmp_path / "jars").mkdir()
    assert missing(environment) is None


def test_a_failing_maven_is_shown_and_leaves_no_jars(tmp_path: Path) -> None:
    maven = script(tmp_path / "bin/mvn", "echo 'no route to host'; exit 1")
    with pytest.raises(LauncherError, match=r"could not fetch Apache Kafka 4\.3\.1:\nno route to host"):
        fetch(tmp_path / "cache/jars", only(maven))
    assert not list((tmp_path / "cache").iterdir())


def test_what_maven_brings_is_verified_before_it_is_used(tmp_path: Path) -> None:
    """With a jar that nobody listed."""
    bring = 'for last; do :; done; to="${last#-DoutputDirectory=}"; /bin/mkdir "$to"; echo x > "$to/evil.jar"'
    maven = script(tmp_path / "bin/mvn", bring)
    with pytest.raises(WrongJars, match=r"does not hold the jars that sha256\.txt lists"):
        fetch(tmp_path / "cache/jars", only(maven))
    assert not list((tmp_path / "cache").iterdir())


class TestTheJars:
    @pytest.fixture
    def jars(self, tmp_path: Path) -> Path:
        """A copy of the real ones that shares their bytes."""
        shutil.copytree(required_runtime().jars, tmp_path / "jars", copy_function=os.link)
        return tmp_path / "jars"

    def test_are_those_of_the_list(self, jars: Path) -> None:
        verify(jars)
        assert len(list(jars.iterdir())) == len(LISTED.splitlines())

    def test_with_one_changed_are_refused_by_name_and_nothing_starts(self, jars: Path) -> None:
        changed = jars / "kafka-clients-4.3.1.jar"
        changed_bytes = bytearray(changed.read_bytes())
        changed_bytes[1000] ^= 1
        changed.unlink()  # not the bytes of the cache
        changed.write_bytes(changed_bytes)
        with pytest.raises(WrongJars, match=r"kafka-clients-4.3.1.jar has SHA-256 \w{64}, not \w{64} .*Remove .*jars"):
            prepare({**os.environ, "ATOMLOG_KAFKA_CACHE": str(jars)})

    def test_with_one_missing_or_added_are_refused(self, jars: Path) -> None:
        (jars / "snakeyaml-1.0.jar").write_bytes(b"")
        with pytest.raises(WrongJars, match=r"snakeyaml-1\.0\.jar"):
            verify(jars)
        (jars / "snakeyaml-1.0.jar").unlink()
        (jars / "kafka-clients-4.3.1.jar").unlink()
        with pytest.raises(WrongJars, match=r"kafka-clients-4\.3\.1\.jar"):
            verify(jars)

    def test_can_be_fetched_by_two_processes_at_once(self, jars: Path, tmp_path: Path) -> None:
        """By a Maven that copies them: both end well, one directory remains, whole."""
        bring = f'for last; do :; done; cp -rl {jars} "${{last#-DoutputDirectory=}}"'
        maven = script(tmp_path / "bin/mvn", bring)
        program = f"import os\nos.environ['PATH'] = {str(maven.parent)!r} + ':' + os.environ['PATH']\n{FETCH}"
        both = [run_python(program, str(tmp_path / "cache/jars")) for _ in range(2)]
        try:
            assert [said(process) for process in both] == ["ready", "ready"]
            for process in both:
                go_on(process)
            assert [said(process) for process in both] == ["fetched", "fetched"]
        finally:
            for process in both:
                end(process)
        assert [path.name for path in (tmp_path / "cache").iterdir()] == ["jars"]
        verify(tmp_path / "cache/jars")


def test_the_command_ends_with_one_line_instead_of_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["up", "--directory", str(tmp_path / "node")]) == 1
    assert capsys.readouterr().err.startswith("error: no java was found")
