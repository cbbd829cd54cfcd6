"""Many zstd frames decompressed by one call: as each of them alone (spec/v1/11-limits.md)."""

import random
from collections.abc import Iterator, Sequence

import pytest
import zstandard

from snapfmt.errors import CorruptObject, LimitExceeded
from snapfmt.format import zframes
from snapfmt.limits import Limits

CONTENTS = [b"a" * 1000, b"", bytes(range(256)) * 1000, b"x", random.Random(0).randbytes(300_000)]


def frame(
    content: bytes, *, checksum: bool = False, level: int = 1, what: str = "x"
) -> zframes.Frame:
    data = zframes.compressor(checksum=checksum, level=level).compress(content)
    return zframes.Frame(memoryview(data), len(content), what)


@pytest.fixture(params=[True, False], ids=["together", "one by one"])
def together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether zstandard has a call for many frames."""
    features = zstandard.backend_features if request.param else set()
    monkeypatch.setattr(zstandard, "backend_features", features)
    return bool(request.param)


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("level", [-1, 1, 19])
def test_each_content_comes_in_order(checksum: bool, level: int) -> None:
    frames = [frame(content, checksum=checksum, level=level) for content in CONTENTS]
    assert [bytes(content) for content in zframes.decompress_all(frames)] == CONTENTS
    for some in ([], frames[:1], frames[1:2], [frames[1], frames[1]]):
        assert len(zframes.decompress_all(some)) == len(some)


def test_one_call_is_made_where_there_is_one(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: list[int] = []
    plain = zframes.decompress

    def counting(data: zframes.Buffer, *, content_size: int, what: str, limits: Limits) -> bytes:
        alone.append(content_size)
        return plain(data, content_size=content_size, what=what, limits=limits)

    monkeypatch.setattr(zframes, "decompress", counting)
    zframes.decompress_all([frame(content) for content in CONTENTS])
    # An empty content is never given to the call: it ends the process.
    assert alone == ([0] if together else [len(content) for content in CONTENTS])


BAD = {
    "bytes behind the frame": lambda data: data + b"x",
    "a second frame": lambda data: data + zframes.compressor().compress(b"b" * 9),
    "cut off": lambda data: data[:-1],
    "no frame": lambda data: b"no frame at all, but as long as one of the others" * 9,
    "a skippable frame": lambda data: (
        b"\x50\x2a\x4d\x18" + (100).to_bytes(4, "little") + bytes(100)
    ),
    "a damaged block": lambda data: data[:12] + bytes([data[12] ^ 0xFF]) * 40 + data[52:],
    "nothing": lambda data: b"",
}


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("at", [0, 2])
def test_one_bad_frame_is_refused_by_its_name(name: str, at: int) -> None:
    content = random.Random(1).randbytes(50) * 40
    frames = [frame(content, checksum=True, what=f"frame {number}") for number in range(4)]
    bad = bytes(BAD[name](bytes(frames[at].data)))
    frames[at] = frames[at]._replace(data=memoryview(bad))
    with pytest.raises((CorruptObject, LimitExceeded)) as caught:
        zframes.decompress_all(frames)
    assert f"frame {at}" in str(caught.value)


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("size", [999, 1001, 0])
def test_a_size_that_is_not_the_content_s_is_refused(size: int) -> None:
    frames = [frame(b"a" * 1000), frame(b"a" * 1000, what="second")._replace(content_size=size)]
    with pytest.raises(CorruptObject, match="another size") as caught:
        zframes.decompress_all(frames)
    assert "second" in str(caught.value)


@pytest.mark.usefixtures("together")
def test_limits_hold_for_every_frame() -> None:
    frames = [frame(b"a" * 10), frame(b"a" * 1000)]
    assert len(zframes.decompress_all(frames, limits=Limits(frame_content=1000))) == 2
    for limits in (Limits(frame_content=999), Limits(expansion=10)):
        with pytest.raises(LimitExceeded):
            zframes.decompress_all(frames, limits=limits)


def test_memory_that_is_not_there_for_all_may_be_there_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacking(frames: Sequence[zframes.Frame]) -> Iterator[memoryview]:
        raise MemoryError

    monkeypatch.setattr(zframes, "_decompress", lacking)
    frames = [frame(content) for content in CONTENTS]
    assert [bytes(content) for content in zframes.decompress_all(frames)] == CONTENTS
