"""Text kernels: native = reference on texts of every kind, and what the definitions say, in numbers."""

import numpy as np
import pytest
from all_backends import same_from_all
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrec import kernels
from hpcrec.data import hashing
from hpcrec.kernels import text

GOOD, EMPTY, BAD = text.GOOD, text.EMPTY, text.BAD
pieces = st.text(alphabet=st.sampled_from('ab09,,,"\r|+-.eE'), max_size=12)


def as_bytes(whole: bytes) -> np.ndarray:
    return np.frombuffer(whole, np.uint8)


def spans(values: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ends = np.cumsum([len(value) for value in values]).astype(np.int32)
    return as_bytes(b"".join(values)), ends - np.array([len(v) for v in values], np.int32), ends


def cut(whole: bytes, wanted: list[int], quote: str | None = None) -> tuple[list[list[bytes]], list[int]]:
    begin, end, _, columns = same_from_all(
        lambda: text.cut_lines(
            as_bytes(whole), delimiter=",", quote=quote, wanted=np.array(wanted, np.int32), n_lines=whole.count(b"\n")
        ),
        threads=(1,),
    )
    values = [[whole[a:b] for a, b in zip(*row, strict=True)] for row in zip(begin.T, end.T, strict=True)]
    return values, columns.tolist()


def test_lines() -> None:
    values, columns = cut(b"a,b,c\r\n,,\n1,2\n\n1,2,3,4\n", [0, 2])
    assert values == [[b"a", b"c"], [b"", b""], [b"1", b""], [b"", b""], [b"1", b"3"]]
    assert columns == [3, 3, 2, 1, 4]


def test_quotes() -> None:
    whole = b'"a,b",c\n"a""b","c"\r\n"a,b\n"a"b,c\na"b,"c"\n"",\n'
    values, columns = cut(whole, [0, 1], quote='"')
    assert columns == [2, 2, -1, -1, 2, 2]
    assert values[0] == [b"a,b", b"c"] and values[1] == [b'a""b', b"c"]
    assert values[4] == [b'a"b', b"c"] and values[5] == [b"", b""]
    assert cut(whole, [0])[0][0] == [b'"a']  # without quotes they are text


@given(lines=st.lists(pieces, max_size=8), quoted=st.booleans())
@settings(deadline=None, max_examples=200)
def test_any_lines(lines: list[str], quoted: bool) -> None:
    whole = "".join(line + "\n" for line in lines).encode()
    cut(whole, [0, 1, 3], quote='"' if quoted else None)


@given(values=st.lists(pieces, max_size=8))
@settings(deadline=None, max_examples=200)
def test_any_values(values: list[str]) -> None:
    where = spans([value.encode() for value in values])
    for kernel in (text.parse_integers, text.parse_numbers, text.parse_hex, text.hash_text):
        same_from_all(lambda kernel=kernel: kernel(*where), threads=(1,))
    same_from_all(lambda: text.cut_lists(*where, "|"), threads=(1,))


def test_integers() -> None:
    values = [b"0", b"-12", b"+7", b"", b"1.0", b"-", b"9" * 18, b"9" * 19, b"1 ", b"0x1"]
    found, state = same_from_all(lambda: text.parse_integers(*spans(values)), threads=(1,))
    assert found.tolist() == [0, -12, 7, 0, 0, 0, 10**18 - 1, 0, 0, 0]
    assert state.tolist() == [GOOD, GOOD, GOOD, EMPTY, BAD, BAD, GOOD, BAD, BAD, BAD]


def test_numbers() -> None:
    good = ["0", "-0.5", "+.5", "1.", "1e5", "2.2250738585072014e-308", "0.1", "179769313486231570e291", "5e-324"]
    bad = ["nan", "inf", "-inf", "1e400", "1e-400", "1,5", ".", "e5", "1e", "+-1", "0x10", "1_0", " 1"]
    found, state = same_from_all(lambda: text.parse_numbers(*spans([v.encode() for v in good + bad])), threads=(1,))
    assert found.tolist() == [float(value) for value in good] + [0.0] * len(bad)
    assert state.tolist() == [GOOD] * len(good) + [BAD] * len(bad)


def test_hexadecimal_and_hashes() -> None:
    values = [b"0000000a", b"FFFFffff", b"", b"zzzzzzzz", b"abc", b"0123456789abcdef", b"0123456789abcdef0"]
    found, state = same_from_all(lambda: text.parse_hex(*spans(values)), threads=(1,))
    assert found.tolist() == [10, 0xFFFFFFFF, 0, 0, 0xABC, 0x0123456789ABCDEF, 0]
    assert state.tolist() == [GOOD, GOOD, EMPTY, BAD, GOOD, GOOD, BAD]
    assert text.parse_hex(*spans(values), digits=8)[1].tolist() == [GOOD, GOOD, EMPTY, BAD, BAD, BAD, BAD]
    found, state = same_from_all(lambda: text.hash_text(*spans([b"", b"abc", b"abcdefghi"])), threads=(1,))
    mix = hashing.mix
    nine = mix(mix(mix(9) ^ int.from_bytes(b"abcdefgh", "little")) ^ ord("i"))
    assert found.tolist() == [mix(0), mix(mix(3) ^ 0x636261), nine] and state.tolist() == [EMPTY, GOOD, GOOD]


def test_lists_and_rows() -> None:
    where = spans([b"a|bc", b"", b"|", b"d"])
    begin, end, offsets = same_from_all(lambda: text.cut_lists(*where, "|"), threads=(1,))
    whole = where[0].tobytes()
    assert [whole[a:b] for a, b in zip(begin, end, strict=True)] == [b"a", b"bc", b"", b"", b"d"]
    assert offsets.tolist() == [0, 2, 2, 4, 5]
    words = np.array([0, 10, 2**64 - 1], np.uint64)
    rows = same_from_all(lambda: text.salted_rows(words, 77, 1000), threads=(1,))
    assert rows.tolist() == [1 + hashing.mix(word ^ 77) % 999 for word in words.tolist()]


def test_refusals() -> None:
    data, begin, end = spans([b"a", b"b"])
    for from_, to in ((begin, end + 1), (begin - 1, end), (end, begin)):
        for backend in ("native", "reference"):
            kernels.use(backend)
            with pytest.raises(ValueError, match="begin <= end"):
                text.parse_integers(data, from_, to)
    with pytest.raises(ValueError, match="one byte"):
        text.cut_lists(data, begin, end, "||")
    with pytest.raises(ValueError, match="int32"):
        text.hash_text(data, begin.astype(np.int64), end)
    with pytest.raises(ValueError, match="newline"):
        text.cut_lines(as_bytes(b"a,b"), delimiter=",", quote=None, wanted=np.array([0], np.int32), n_lines=1)
    with pytest.raises(ValueError, match="lines"):
        text.cut_lines(as_bytes(b"a\nb\n"), delimiter=",", quote=None, wanted=np.array([0], np.int32), n_lines=1)
