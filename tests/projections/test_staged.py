"""Staged changes: seen by point reads at once, written as one batch, counted in rows."""

from atomlog.kernel.kv import Staged
from tests.projections.stores import NewKv, Watched


def test_staged_changes_are_read_before_they_are_written(new_kv: NewKv) -> None:
    with new_kv() as kv:
        kv.write([(b"a", b"1"), (b"b", b"1")])
        staged = Staged(kv)
        staged.put(b"a", b"2")
        staged.delete(b"b")
        staged.insert(b"c", b"3")
        assert [staged.get(key) for key in (b"a", b"b", b"c", b"d")] == [b"2", None, b"3", None]
        assert list(staged.get_many([b"d", b"c", b"b", b"a"])) == [None, b"3", None, b"2"]
        assert list(staged.get_many([b"d"])) == [None]
        assert list(kv.get_many([b"a", b"b", b"c"])) == [b"1", b"1", None]
        staged.commit()
        assert list(kv.get_many([b"a", b"b", b"c"])) == [b"2", None, b"3"]


def test_inserts_and_removals_are_counted_until_the_commit(new_kv: NewKv) -> None:
    with new_kv() as kv:
        kv.write([(b"a", b"1")])
        staged = Staged(kv)
        staged.insert(b"b", b"1")
        staged.insert_all([(b"c", b"1"), (b"d", b"1")])
        staged.put_all([(b"a", b"2"), (b"e", b"2")])
        staged.remove(b"a")
        assert staged.rows == 2
        staged.commit()
        assert staged.rows == 0
        assert [key for key, _ in kv.scan(b"", b"z")] == [b"b", b"c", b"d", b"e"]


def test_everything_staged_is_one_write(new_kv: NewKv) -> None:
    class Counting(Watched):
        writes = 0

        def write(self, puts: object, deletes: object = ()) -> None:
            Counting.writes += 1

    with new_kv() as kv:
        staged = Staged(Counting(kv))
        staged.put(b"a", b"1")
        staged.delete(b"b")
        staged.commit()
        assert Counting.writes == 1
