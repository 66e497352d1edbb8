"""Bytes that were once written stay readable, and stay the ones that are written."""

import hashlib
import io
import json
import subprocess
import sys
import unicodedata
from importlib.resources import files
from typing import Any

import fastavro
import pytest

from atomlog.kernel.ids import ATOMLOG_NS, format_id, keyed_id, partition_of
from atomlog.schemas import codec
from atomlog.schemas.batch import decode_batch, encode_batch
from atomlog.schemas.content import decode_content, encode_content
from atomlog.schemas.record import chain_after, headers, pack, unpack
from atomlog.schemas.revision import decode_clear, sealed_of
from tests.schemas.golden_files import CASES, GOLDEN, HERE, RELEASED, data, encodings, kinds_of, shown

RECORDS: dict[str, dict[str, Any]] = json.loads((GOLDEN / "records.json").read_text("utf-8"))
PACKED = [bytes.fromhex(line) for line in (GOLDEN / "records.hex").read_text("ascii").splitlines()]
IDS: dict[str, Any] = json.loads((GOLDEN / "ids.json").read_text("utf-8"))


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_schema_file_is_never_edited(name: str) -> None:
    raw = files("atomlog.schemas").joinpath("avsc", f"{name}.avsc").read_bytes()
    assert hashlib.sha256(raw).hexdigest() == RELEASED[name]["sha256"], (
        f"{name}.avsc was released: put a new version beside it instead"
    )


def test_every_schema_file_is_pinned_and_known_by_its_fingerprint() -> None:
    present = {path.name.removesuffix(".avsc") for path in files("atomlog.schemas").joinpath("avsc").iterdir()}
    assert present == RELEASED.keys(), "run tests/schemas/make_golden.py"
    assert {schema.name for schema in codec.by_fingerprint().values()} == present


@pytest.mark.parametrize("name", RELEASED)
def test_a_fingerprint_is_what_an_independent_program_computes(name: str) -> None:
    assert codec.load(name).fingerprint.hex() == RELEASED[name]["fingerprint"]


def test_the_golden_files_are_what_the_independent_program_makes() -> None:
    done = subprocess.run([sys.executable, str(HERE / "make_golden.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_independent_program_imports_nothing_of_ours() -> None:
    source = (HERE / "make_golden.py").read_text("utf-8")
    imported = [line.split()[1] for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert not [name for name in imported if name.startswith(("atomlog", "tests"))]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_old_bytes_are_read_as_what_was_written(name: str, case: str) -> None:
    assert shown(codec.decode_datum(codec.load(name), encodings(name)[case])) == data(name)[case]


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, case in CASES if kinds_of(name)])
def test_a_record_value_of_every_version_is_read_under_its_kind(name: str, case: str) -> None:
    value = codec.wrap(codec.load(name).fingerprint, encodings(name)[case])
    for kind in kinds_of(name):
        assert shown(codec.decode(value, kind)) == data(name)[case]


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, case in CASES if kinds_of(name)])
def test_the_newest_schema_of_a_kind_resolves_every_old_writer(name: str, case: str) -> None:
    writer = codec.load(name).parsed
    for kind in kinds_of(name):
        reader = codec.current(kind).parsed
        assert fastavro.schemaless_reader(io.BytesIO(encodings(name)[case]), writer, reader) is not None


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, case in CASES if kinds_of(name)])
def test_the_newest_version_of_a_kind_writes_its_golden_bytes(name: str, case: str) -> None:
    schema = codec.load(name)
    datum = codec.decode_datum(schema, encodings(name)[case])
    for kind in kinds_of(name):
        if codec.current(kind) is schema:
            assert codec.encode(kind, datum) == codec.wrap(schema.fingerprint, encodings(name)[case])


@pytest.mark.parametrize("case", data("BatchV1"))
def test_the_batch_codec_reads_and_writes_its_golden_bytes(case: str) -> None:
    if case == "empty":  # its revisions list is empty, its inbox too
        assert decode_batch(encodings("BatchV1")[case]).inbox is None
    batch, expected = decode_batch(encodings("BatchV1")[case]), data("BatchV1")[case]
    assert encode_batch(batch) == encodings("BatchV1")[case]
    found = (batch.request_key.hex(), batch.digest_key_id.hex(), batch.space, [r.hex() for r in batch.revisions])
    assert found == tuple(expected[name] for name in ("request_key", "digest_key_id", "space", "revisions"))


@pytest.mark.parametrize("case", data("ContentV1"))
def test_the_content_codec_reads_and_writes_its_golden_bytes(case: str) -> None:
    content, expected = decode_content(encodings("ContentV1")[case]), data("ContentV1")[case]
    assert encode_content(content) == encodings("ContentV1")[case]
    assert content.value.hex() == expected["value"]
    assert [origin.sha256.hex() for origin in content.origins] == [one["sha256"] for one in expected["origins"]]
    assert [vector.space for vector in content.vectors] == [one["space"] for one in expected["vectors"]]


@pytest.mark.parametrize("case", data("RevisionV1"))
def test_the_revision_codec_reads_its_golden_bytes(case: str) -> None:
    raw, expected = encodings("RevisionV1")[case], data("RevisionV1")[case]
    clear, at = decode_clear(raw)
    assert (clear.atom_id.hex(), clear.revision_id.hex()) == (expected["atom_id"], expected["revision_id"])
    assert [slot.target.hex() for slot in clear.slots] == [one["target"] for one in expected["slots"]]
    assert [scope.empty for scope in clear.inputs.scopes] == [one["empty"] for one in expected["inputs"]["scopes"]]
    assert clear.inputs.generator == expected["inputs"]["generator"]
    assert sealed_of(raw, at).hex() == expected["sealed"]


@pytest.mark.parametrize(("case", "raw"), list(zip(RECORDS, PACKED, strict=True)), ids=list(RECORDS))
def test_a_packed_record_is_read_and_written_as_ever(case: str, raw: bytes) -> None:
    record, stop = unpack(b"\x00" + raw + b"\x00", 1)
    assert stop == 1 + len(raw)
    assert pack(record) == raw
    assert {name: part.hex() for name, part in headers(record)} | {"kind": record.kind.encode().hex()} == RECORDS[case][
        "headers"
    ]
    assert record.value.hex() == RECORDS[case]["value"]


def test_the_chain_over_the_golden_history_is_the_independent_one() -> None:
    chain = bytes(16)
    for case, raw in zip(RECORDS, PACKED, strict=True):
        chain = chain_after(chain, unpack(raw, 0)[0])
        assert chain.hex() == RECORDS[case]["chain_after"], case


def test_the_namespace_of_keyed_ids_is_frozen() -> None:
    assert ATOMLOG_NS.hex() == IDS["namespace"]


@pytest.mark.parametrize("vector", IDS["ids"], ids=lambda vector: f"{vector['space']}-{vector['policy']}")
def test_a_keyed_id_is_the_one_of_the_test_vector(vector: dict[str, str]) -> None:
    assert format_id(keyed_id(vector["space"], vector["policy"], vector["key"])) == vector["atom"]


@pytest.mark.parametrize("vector", IDS["ids"], ids=lambda vector: f"{vector['space']}-{vector['policy']}")
def test_the_documented_test_vectors_are_these(vector: dict[str, str]) -> None:
    row = "| `{space}` | `{policy}` | `{key}`".format(**{**vector, "key": unicodedata.normalize("NFC", vector["key"])})
    page = (HERE.parents[1] / "docs" / "formats.md").read_text("utf-8")
    assert [line for line in page.splitlines() if line.startswith(row) and line.endswith(f"| `{vector['atom']}` |")]


@pytest.mark.parametrize("vector", IDS["partitions"], ids=lambda vector: f"{vector['space']}-{vector['partitions']}")
def test_the_partition_of_a_space_is_the_one_of_the_test_vector(vector: dict[str, Any]) -> None:
    assert partition_of(vector["space"], vector["partitions"]) == vector["partition"]
