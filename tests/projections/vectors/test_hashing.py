"""The hashing encoder: any text, the same row whatever its company, related texts nearer than others."""

import asyncio
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel.errors import InvalidError
from atomlog.kernel.vector_spaces import parse_vector_space
from atomlog.projections.encoders import HashingEncoder, SuppliedEncoder, encoder_of
from atomlog.projections.encoders.hashing import GROUP_CHARACTERS, PIECE_CHARACTERS, FeatureHasher
from tests.projections.vectors.worlds import space_of
from tests.support.sealed import HOSTILE_TEXTS, InlineWorkers

HASHER = FeatureHasher(512)
SPACE = parse_vector_space("hashing/1/512/cosine", "space")


def cosine(one: str, other: str) -> float:
    first, second = HASHER.rows([one, other])
    return float(first @ second)


@pytest.mark.parametrize(
    ("query", "right", "wrong"),
    [
        ("green tea temperature", "Green tea is brewed at 80 °C", "The railway station closes at eight"),
        ("緑茶の温度", "緑茶は八十度で淹れる", "駅は八時に閉まる"),
        ("食べ", "リンゴを食べます", "リンゴを売ります"),
        ("ﾜｶﾞﾊｲ", "ワガハイは猫である", "ワガママな猫である"),
        ("connection", "many CONNECTIONS were refused", "many collections were refreshed"),
        ("POL-358", "ticket POL-358 is open", "ticket ABC-112 is open"),
    ],
)
def test_related_texts_are_nearer_than_others(query: str, right: str, wrong: str) -> None:
    assert cosine(query, right) > cosine(query, wrong) + 0.1


def test_forms_of_one_text_are_one_text() -> None:
    assert cosine("ﾜｶﾞﾊｲ Ａｂｃ", "ワガハイ abc") == pytest.approx(1, abs=1e-6)
    assert cosine("が", "か\u3099") == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    "text", [*HOSTILE_TEXTS, "note \udc95 end", "\ud83d", "x" * 70_000, "語" * 70_000, "﷽" * 3_000]
)
def test_no_text_is_refused(text: str) -> None:
    row = HASHER.rows([text])[0]
    assert row.dtype == np.float32
    assert np.linalg.norm(row) == pytest.approx(1, abs=1e-5) or not row.any()


@pytest.mark.parametrize("text", ["", " \n\t", "…!?、。", "\0\0", "\ud800"])
def test_text_without_words_gives_zeros(text: str) -> None:
    assert not HASHER.rows([text]).any()


@given(st.lists(st.text(st.characters(codec=None), max_size=40), max_size=8), st.text(st.characters(codec=None)))
def test_a_row_does_not_depend_on_the_other_texts(others: list[str], text: str) -> None:
    alone = HASHER.rows([text])[0].tobytes()
    assert HASHER.rows([*others, text])[-1].tobytes() == alone
    assert HASHER.rows([text, *others])[0].tobytes() == alone


def test_a_row_does_not_depend_on_where_a_batch_is_divided() -> None:
    texts = [f"word{number} " * 1_200 for number in range(30)]
    assert sum(map(len, texts)) > 3 * GROUP_CHARACTERS
    together = HASHER.rows(texts)
    assert all(HASHER.rows([text])[0].tobytes() == row.tobytes() for text, row in zip(texts, together, strict=True))


def test_the_end_of_a_long_text_counts() -> None:
    filler = "lorem ipsum dolor " * (3 * PIECE_CHARACTERS // 18)
    assert cosine("aardvark", f"{filler} {'aardvark ' * 500}") > cosine("aardvark", filler) + 0.05


def test_rows_are_the_same_in_every_release() -> None:
    """A stored vector must stay comparable with a new query: another row needs another version in the space id."""
    texts = ["Green tea, 80 °C", "緑茶は八十度で淹れる。", "カタカナ語 mixed WITH Latin", "a"]
    digest = hashlib.sha256(HASHER.rows(texts).round(5).tobytes()).hexdigest()
    assert digest[:16] == "5d3a54bc080a1e5a"


def test_encoders_are_chosen_by_the_name_in_the_space() -> None:
    encoder = encoder_of(SPACE, InlineWorkers())
    assert isinstance(encoder, HashingEncoder)
    passage = asyncio.run(encoder.encode_passages(["green tea"]))
    query = asyncio.run(encoder.encode_query("green tea"))
    assert passage.shape == (1, 512)
    assert query.tobytes() == passage[0].tobytes()
    assert isinstance(encoder_of(parse_vector_space("hashing/2/512/cosine", "space"), InlineWorkers()), SuppliedEncoder)


def test_a_space_of_supplied_vectors_encodes_nothing() -> None:
    encoder = SuppliedEncoder(space_of())
    assert encoder.media_types == frozenset()
    for call in (encoder.encode_query("x"), encoder.encode_passages(["x"])):
        with pytest.raises(InvalidError, match="give a vector instead"):
            asyncio.run(call)


@pytest.mark.parametrize(("name", "least", "queries"), [("jsquad", 0.9, 400), ("scifact", 0.55, 150)])
def test_it_finds_the_right_paragraph_among_real_ones(test_data: Path, name: str, least: float, queries: int) -> None:
    with gzip.open(test_data / name / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        corpus = [json.loads(line) for line in file]
    asked = [json.loads(line) for line in (test_data / name / "queries_dev.jsonl").read_text("utf-8").splitlines()]
    rows = HASHER.rows([f"{one['title']}\n{one['text']}" for one in corpus])
    found = np.argsort(-(HASHER.rows([one["text"] for one in asked[:queries]]) @ rows.T), axis=1)[:, :10]
    names = np.array([one["id"] for one in corpus])
    shares = [
        len(set(one["relevant"]) & set(names[best])) / len(one["relevant"])
        for one, best in zip(asked, found, strict=False)
    ]
    assert np.mean(shares) >= least
