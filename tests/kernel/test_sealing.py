"""The seal itself, the master key and its file, wrapped pages, request digests."""

import hashlib
import hmac
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel import sealing
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ports import KeyPage
from atomlog.kernel.sealing import MasterKey, SealBroken
from atomlog.kernel.system import SystemFiles, SystemRandomness
from tests.support.sealed import MASTER, OTHER_MASTER, CountedRandomness

KEY = bytes(range(32))
NONCE = bytes(range(12))
SEALED = sealing.seal(KEY, NONCE, b"green tea", b"clear part")
KEYS = hashlib.shake_256(b"keys").digest(8_192)
PAGE = KeyPage(
    page=b"pagepage",
    version=3,
    maker_partition=1,
    maker_term=7,
    maker_owner=b"o" * 16,
    master_key_id=bytes(8),
    destroyed=bytes(32),
    wrapped=b"",
)


def test_a_seal_is_nonce_then_ciphertext_then_tag() -> None:
    """Test case 16 of the GCM specification (McGrew, Viega)."""
    key = bytes.fromhex("feffe9928665731c6d6a8f9467308308" * 2)
    nonce = bytes.fromhex("cafebabefacedbaddecaf888")
    plaintext = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    associated = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    ciphertext = bytes.fromhex(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
    )
    tag = bytes.fromhex("76fc6ece0f4e1768cddf8853bb2d551b")
    assert sealing.seal(key, nonce, plaintext, associated) == nonce + ciphertext + tag


def test_what_was_sealed_is_unsealed() -> None:
    assert sealing.unseal(KEY, SEALED, b"clear part") == b"green tea"


@given(plaintext=st.binary(max_size=300), associated=st.binary(max_size=300))
def test_any_bytes_are_sealed_and_unsealed(plaintext: bytes, associated: bytes) -> None:
    sealed = sealing.seal(KEY, NONCE, plaintext, associated)
    assert len(sealed) == len(plaintext) + sealing.SEAL_BYTES
    assert sealing.unseal(KEY, sealed, associated) == plaintext


@pytest.mark.parametrize("at", range(len(SEALED)))
def test_no_byte_of_a_seal_can_be_changed(at: int) -> None:
    for bit in range(8):
        broken = bytearray(SEALED)
        broken[at] ^= 1 << bit
        with pytest.raises(SealBroken):
            sealing.unseal(KEY, bytes(broken), b"clear part")


@pytest.mark.parametrize("size", range(len(SEALED)))
def test_a_seal_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(SealBroken):
        sealing.unseal(KEY, SEALED[:size], b"clear part")


@pytest.mark.parametrize("associated", [b"", b"clear par", b"clear part\0", b"Clear part"])
def test_a_seal_holds_only_beside_its_associated_data(associated: bytes) -> None:
    with pytest.raises(SealBroken):
        sealing.unseal(KEY, SEALED, associated)


def test_another_key_does_not_unseal() -> None:
    with pytest.raises(SealBroken):
        sealing.unseal(bytes(32), SEALED, b"clear part")


def test_ciphers_that_were_kept_can_be_dropped() -> None:
    sealing.seal(KEY, NONCE, b"", b"")
    sealing.forget_ciphers()
    assert sealing._cipher.cache_info().currsize == 0


def test_the_id_of_a_master_key_follows_from_the_key() -> None:
    assert MASTER.id == hashlib.sha256(b"atomlog-master" + MASTER.key).digest()[:8]


def test_a_master_key_does_not_show_itself() -> None:
    assert repr(MASTER) == str(MASTER) == f"MasterKey(id={MASTER.id!r})"


def test_a_master_key_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "master.key")
    before = os.umask(0)
    try:
        made = sealing.create_master_key(SystemFiles(), SystemRandomness(), path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert sealing.load_master_key(SystemFiles(), path) == made


def test_a_master_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "master.key"
    sealing.create_master_key(SystemFiles(), CountedRandomness("a"), str(path))
    before = path.read_bytes()
    with pytest.raises(AtomlogError, match="exists and is not overwritten") as caught:
        sealing.create_master_key(SystemFiles(), CountedRandomness("b"), str(path))
    assert caught.value.code == "INVALID_INPUT"
    assert path.read_bytes() == before


def test_an_absent_master_key_is_none(tmp_path: Path) -> None:
    assert sealing.load_master_key(SystemFiles(), str(tmp_path / "master.key")) is None


def test_a_master_key_file_may_have_lost_its_line_end() -> None:
    assert MasterKey.from_text(MASTER.to_text().strip().encode(), "f") == MASTER
    assert MasterKey.from_text(MASTER.to_text().replace("\n", "\r\n").encode(), "f") == MASTER


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        bytes(32),
        os.urandom(32),
        MASTER.key,
        MASTER.key.hex().encode(),
        MASTER.to_text().encode()[:-4],
        MASTER.to_text().encode() * 2,
        MASTER.to_text().replace("key-1", "key-2").encode(),
        f"atomlog-master-key-1 {'g' * 64} {MASTER.id.hex()}\n".encode(),
        f"atomlog-master-key-1 {MASTER.key[:16].hex()} {MASTER.id.hex()}\n".encode(),
        b"-----BEGIN PRIVATE KEY-----\n" * 1_000,
    ],
    ids=range(12),
)
def test_what_is_no_master_key_file_is_refused_by_name(raw: bytes) -> None:
    with pytest.raises(AtomlogError, match=r"^INVALID_INPUT: /etc/master\.key: ") as caught:
        MasterKey.from_text(raw, "/etc/master.key")
    assert MASTER.key.hex()[:32] not in str(caught.value)


def test_a_master_key_with_a_changed_digit_is_refused() -> None:
    text = MASTER.to_text()
    for at in range(text.index(" ") + 1, len(text) - 1):
        changed = text[:at] + ("1" if text[at] != "1" else "2") + text[at + 1 :]
        with pytest.raises(AtomlogError, match="INVALID_INPUT"):
            MasterKey.from_text(changed.encode(), "f")


def test_a_directory_is_no_master_key(tmp_path: Path) -> None:
    with pytest.raises(AtomlogError, match="cannot be read"):
        sealing.load_master_key(SystemFiles(), str(tmp_path))


def test_a_page_is_wrapped_and_unwrapped() -> None:
    wrapped = sealing.wrap_page(MASTER, NONCE, PAGE, KEYS)
    assert wrapped.master_key_id == MASTER.id
    assert len(wrapped.wrapped) == 28 + 8_192
    assert KEYS[:16] not in wrapped.wrapped
    assert sealing.unwrap_page(MASTER, wrapped) == KEYS


@pytest.mark.parametrize(
    "changes",
    [
        {"page": b"pagepagf"},
        {"version": 4},
        {"version": -1},
        {"maker_partition": 0},
        {"maker_partition": 2**40},
        {"maker_term": 8},
        {"maker_owner": b"p" * 16},
        {"master_key_id": bytes(8)},
        {"destroyed": bytes(31) + b"\x80"},
        {"wrapped": b""},
        {"wrapped": bytes(28 + 8_192)},
    ],
)
def test_a_page_is_bound_to_all_that_it_says(changes: dict[str, object]) -> None:
    wrapped = sealing.wrap_page(MASTER, NONCE, PAGE, KEYS)
    with pytest.raises(SealBroken):
        sealing.unwrap_page(MASTER, replace(wrapped, **changes))  # type: ignore[arg-type]


def test_another_master_key_does_not_unwrap() -> None:
    with pytest.raises(SealBroken):
        sealing.unwrap_page(OTHER_MASTER, sealing.wrap_page(MASTER, NONCE, PAGE, KEYS))


def test_half_a_page_is_not_wrapped() -> None:
    with pytest.raises(ValueError, match="8192"):
        sealing.wrap_page(MASTER, NONCE, PAGE, KEYS[:4_096])


def test_a_request_key_is_an_hmac_over_principal_and_key() -> None:
    expected = hmac.new(KEY, b"local\x00" + "réponse".encode(), hashlib.sha256).digest()
    assert sealing.request_key(KEY, "local", "réponse") == expected


def test_principal_and_key_cannot_be_shifted_into_each_other() -> None:
    assert sealing.request_key(KEY, "a", "bc") != sealing.request_key(KEY, "ab", "c")
    assert sealing.request_key(KEY, "a", "\0b") != sealing.request_key(KEY, "a", "b")
    with pytest.raises(ValueError, match="NUL"):
        sealing.request_key(KEY, "a\0", "b")


def test_a_request_digest_depends_on_the_space_key() -> None:
    assert sealing.request_digest(KEY, b"{}") == hmac.new(KEY, b"{}", hashlib.sha256).digest()
    assert sealing.request_digest(KEY, b"{}") != sealing.request_digest(bytes(32), b"{}")
