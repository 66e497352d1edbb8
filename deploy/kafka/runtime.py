"""Java, and the jars of Apache Kafka: found, fetched once, held against their digests."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.kafka.errors import LauncherError, NotInstalled, WrongJars

HERE = Path(__file__).resolve().parent
VERSION = "4.3.1"
JAVA_MIN = 17
FETCH_TIMEOUT_S = 600
TOOL_TIMEOUT_S = 60
INSTALL = "On Debian and Ubuntu: apt-get install openjdk-17-jre-headless maven"
# Brokers here are small and short-lived: one collector thread, no second compiler.
SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ActiveProcessorCount=2", "-XX:MaxDirectMemorySize=64m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A Java that is new enough and the directory of verified jars."""

    java: str
    jars: Path

    def command(self, main: str, arguments: Sequence[str], *, heap: str, logging: str) -> list[str]:
        """The argv that runs the class `main` with at most `heap` ("256m") of Java heap; `logging`: a file here."""
        options = (
            f"-Xmx{heap}",
            *SMALL_JVM,
            "-Djava.net.preferIPv4Stack=true",
            f"-Dlog4j2.configurationFile={HERE / logging}",
        )
        return [self.java, *options, "-cp", f"{self.jars}/*", main, *arguments]

    def tool(self, main: str, *arguments: str, stdin: str = "", timeout_s: float = TOOL_TIMEOUT_S) -> str:
        """Runs one of Kafka's tools to its end and returns what it printed; LauncherError with that if it failed."""
        command = self.command(main, arguments, heap="128m", logging="log4j2-tools.properties")
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode != 0:
            raise LauncherError(f"{main} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


def prepare(environment: Mapping[str, str] = os.environ) -> Runtime:
    """Java and verified jars, fetched if they are not in the cache yet.

    Raises NotInstalled, WrongJars, or LauncherError when Maven fails.
    """
    java = find_java(environment)
    jars = jars_directory(environment)
    if not jars.is_dir():
        fetch(jars, environment)
    verify(jars)
    return Runtime(java=java, jars=jars)


def jars_directory(environment: Mapping[str, str]) -> Path:
    named = environment.get("ATOMLOG_KAFKA_CACHE")
    return Path(named) if named else Path(environment.get("HOME", "~")).expanduser() / f".cache/atomlog/kafka-{VERSION}"


def missing(environment: Mapping[str, str] = os.environ) -> str | None:
    """What must be installed before `prepare` can succeed; None if nothing. Looks at programs, not at jars."""
    try:
        find_java(environment)
        if not jars_directory(environment).is_dir():
            find_maven(environment)
    except NotInstalled as error:
        return str(error)
    return None


def find_java(environment: Mapping[str, str]) -> str:
    """JAVA_HOME's java, else the first on PATH. NotInstalled if there is none or it is older than 17."""
    java = _program("java", environment)
    if java is None:
        raise NotInstalled(f"no java was found; brokers need Java {JAVA_MIN} or newer. {INSTALL}")
    done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    said = (done.stderr + done.stdout).strip()
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if done.returncode != 0 or found is None:
        raise NotInstalled(f"{java} does not run: {said or 'it says nothing'}. {INSTALL}")
    if int(found[1]) < JAVA_MIN:
        raise NotInstalled(f"{java} is Java {found[1]}; brokers need {JAVA_MIN} or newer. {INSTALL}")
    return java


def find_maven(environment: Mapping[str, str]) -> str:
    maven = shutil.which("mvn", path=environment.get("PATH", ""))
    if maven is None:
        raise NotInstalled(f"no mvn was found; Maven fetches Apache Kafka the first time. {INSTALL}")
    return maven


def fetch(jars: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Fetches all jars into `jars`: whole and verified, or not at all. Two processes may do this at once."""
    maven = find_maven(environment)
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=jars.parent) as scratch:
        fresh = Path(scratch) / "jars"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={fresh}"]
        command = [maven, "-B", "-q", "-f", str(HERE / "pom.xml"), *goal]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False, env=dict(environment)
        )
        if done.returncode != 0 or not fresh.is_dir():
            raise LauncherError(f"Maven could not fetch Apache Kafka {VERSION}:\n{(done.stdout + done.stderr).strip()}")
        verify(fresh)
        try:
            fresh.rename(jars)
        except OSError:
            if not jars.is_dir():  # another process was first: its jars are verified as well
                raise


def verify(jars: Path, listed: Path = HERE / "sha256.txt") -> None:
    """WrongJars unless `jars` holds exactly the files of the list, each with its digest."""
    expected = {name: digest for digest, name in (line.split() for line in listed.read_text("utf-8").splitlines())}
    found = {path.name: path for path in jars.iterdir()}
    way_out = f"Nothing was started. Remove {jars}, then start again: it is fetched anew."
    if found.keys() != expected.keys():
        other = ", ".join(sorted(found.keys() ^ expected.keys())[:5])
        raise WrongJars(f"{jars} does not hold the jars that {listed.name} lists: {other}. {way_out}")
    for name, path in sorted(found.items()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != expected[name]:
            raise WrongJars(f"{name} has SHA-256 {digest}, not {expected[name]} as listed. {way_out}")


def _program(name: str, environment: Mapping[str, str]) -> str | None:
    home = environment.get("JAVA_HOME")
    at_home = shutil.which(name, path=f"{home}/bin") if home else None
    return at_home or shutil.which(name, path=environment.get("PATH", ""))
