"""Renderbuffers: chunks that several processes paint, and painters that are killed."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm
from ndshm._render import _identity

SHAPE, CHUNK = (10, 7, 4), (4, 4, 4)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "bool", "<f4", "c16"])
def test_painted_array_has_every_element_of_its_chunks(name: str, dtype: str, order: str) -> None:
    want = np.arange(280).reshape(SHAPE).astype(dtype)
    buffer = ndshm.RenderBuffer(name, SHAPE, CHUNK, dtype, order)
    assert buffer.progress == (0, 6) and buffer.shape == SHAPE and name in repr(buffer)
    for claim in buffer.claims():
        with claim as x:
            assert x.shape == want[claim.region].shape and x.dtype == want.dtype
            x[...] = want[claim.region]
    assert buffer.progress == (6, 6)
    with pytest.raises(ndshm.NotFound):
        ndshm.open(name)
    array = buffer.finish()
    np.testing.assert_array_equal(array[...], want)
    again = ndshm.open(name)
    assert (again.dtype, again.shape, again.order) == (want.dtype, SHAPE, order)
    with pytest.raises(ValueError, match="finished or discarded"):
        buffer.claim()


def test_error_in_the_block_releases_the_chunk(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, 8, 4, "u1")
    with pytest.raises(ZeroDivisionError):
        with buffer.claim() as x:  # type: ignore[union-attr]
            x[0] = 1 // 0
    assert buffer.progress == (0, 2)
    assert sorted(claim.number for claim in _commit_all(buffer)) == [0, 1]
    buffer.finish()


def _commit_all(buffer: ndshm.RenderBuffer) -> list[ndshm.Claim]:
    claims = []
    for claim in buffer.claims():
        with claim:
            pass
        claims.append(claim)
    return claims


def test_claims_exclude_each_other_and_waiting_has_a_limit(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, 4, 4, "u1")
    other = ndshm.RenderBuffer.join(name, "u1")
    claim = buffer.claim()
    assert claim is not None
    with pytest.raises(BlockingIOError):
        other.claim(0)
    with pytest.raises(TimeoutError):
        other.claim(0.05)
    with claim as x:
        x[:] = 1
    assert other.claim() is None
    with pytest.raises(ValueError, match="ended"):
        claim.__enter__()
    assert other.finish()[0] == 1


def test_unfinished_buffer_is_resumed_and_other_work_refused(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, (6, 4), (3, 4), "u2", fingerprint="one")
    with pytest.raises(ndshm.Incomplete):
        buffer.finish()
    with buffer.claim() as x:  # type: ignore[union-attr]
        x[:] = 3
    del x, buffer
    with pytest.raises(ndshm.Mismatch):
        ndshm.RenderBuffer(name, (6, 4), (3, 4), "u2", fingerprint="two")
    with pytest.raises(ndshm.Mismatch):
        ndshm.RenderBuffer.join(name, "u4")
    with pytest.raises(ndshm.InvalidArgument, match="axes"):
        ndshm.RenderBuffer(name, (6, 4), 3, "u2")
    again = ndshm.RenderBuffer(name, (6, 4), (3, 4), "u2", fingerprint="one")
    assert again.progress == (1, 2)
    other = ndshm.RenderBuffer.join(name, "u2")
    again.discard()
    with pytest.raises(ndshm.Unlinked):
        other.claim()
    with pytest.raises(ndshm.NotFound):
        ndshm.RenderBuffer.join(name, "u2")


def test_view_that_outlives_its_claim_is_named_and_stays_mapped(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, 4, 4, "u1")
    with pytest.warns(ndshm.ViewOutlivesGuard):
        with buffer.claim() as x:  # type: ignore[union-attr]
            kept = x[1:]
    kept[0] = 5  # not protected, but not a crash either
    array = buffer.finish()
    array.close()
    del array, buffer
    kept[1] = 6
    assert ndshm.open(name)[...].tolist() == [0, 5, 6, 0]


def test_view_of_a_discarded_buffer_stays_mapped(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, 4, 4, "u1")
    with pytest.warns(ndshm.ViewOutlivesGuard):
        with buffer.claim() as x:  # type: ignore[union-attr]
            kept = x[1:]
    buffer.discard()
    with pytest.raises(ValueError, match="discarded"):
        buffer.claim()
    del buffer, x
    kept[:] = 7
    assert kept.sum() == 21


def test_discard_spares_a_newer_buffer(name: str) -> None:
    old = ndshm.RenderBuffer(name, 4, 4, "u1")
    ndshm.RenderBuffer.join(name, "u1").discard()
    new = ndshm.RenderBuffer(name, 8, 4, "u1")
    old.discard()
    with new.claim() as x:  # type: ignore[union-attr]
        x[:] = 1
    assert ndshm.RenderBuffer.join(name, "u1").progress == (1, 2)
    new.discard()


def looks_for_a_missing_array(x: Any, region: tuple[slice, ...]) -> None:
    ndshm.open("no-such-array")


def raises_unlinked(x: Any, region: tuple[slice, ...]) -> None:
    raise ndshm.Unlinked("the array of the function")


@pytest.mark.parametrize(("function", "text"), [(looks_for_a_missing_array, "no-such-array"), (raises_unlinked, "the array of the function")])
def test_missing_array_of_the_function_is_reported(name: str, function: Any, text: str) -> None:
    with pytest.raises(ndshm.PaintError, match=text):
        ndshm.paint(name, 4, 4, "u1", function, workers=1)
    ndshm.RenderBuffer.join(name, "u1").discard()


@pytest.mark.parametrize("workers", [-1, 1.5, "2"])
def test_number_of_workers_must_be_one(name: str, workers: Any) -> None:
    with pytest.raises(ndshm.InvalidArgument, match="workers"):
        ndshm.paint(name, 4, 4, "u1", slow_square, workers=workers)
    with pytest.raises(ndshm.NotFound):
        ndshm.RenderBuffer.join(name, "u1")


def test_pickling_what_belongs_to_a_process_says_what_to_send(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, 4, 2, "u1")
    claim = buffer.claim(0)
    assert claim is not None
    with pytest.raises(TypeError, match=r"RenderBuffer\.join there"):
        pickle.dumps(buffer)
    with pytest.raises(TypeError, match="claim a chunk there"):
        pickle.dumps(claim)
    with claim as x:
        x[:] = 1
    finished = buffer.chunk(0)
    assert finished is not None
    with pytest.raises(TypeError, match="read the chunk there"):
        pickle.dumps(finished)
    finished.release()
    buffer.discard()
    with pytest.raises(TypeError, match="lock it there"):
        pickle.dumps(ndshm.share_zeros(4, "u1").read())


def test_function_that_workers_cannot_import_begins_nothing(name: str) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        ndshm.paint(name, 4, 4, "u1", lambda x, region: None)
    with pytest.raises(ndshm.NotFound):
        ndshm.RenderBuffer.join(name, "u1")


def test_warning_names_the_line_of_the_block(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, 4, 4, "u1")
    with pytest.warns(ndshm.ViewOutlivesGuard) as warned:
        with buffer.claim() as x:  # type: ignore[union-attr]
            kept = x[1:]
    with pytest.warns(ndshm.ViewOutlivesGuard) as warned_too:
        with buffer.finish().read() as x:
            kept = x[1:]
    assert kept.size == 3
    assert {warning.filename for warning in [*warned, *warned_too]} == {__file__}


def test_buffer_with_an_open_claim_is_not_finished(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, 4, 4, "u1")
    claim = buffer.claim()
    assert claim is not None
    with pytest.raises(ndshm.InUse, match="release it first"):
        buffer.finish()
    with claim:
        pass
    buffer.finish()


def test_inherited_claim_is_an_error_in_the_child(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, 4, 4, "u1")
    claim = buffer.claim()
    assert claim is not None
    with claim:
        child = os.fork()
        if child == 0:
            try:
                claim.__exit__(None, None, None)
            except ndshm.NdshmError as error:
                os._exit(7 if "parent" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert buffer.progress == (0, 1)
        with pytest.raises(BlockingIOError):
            ndshm.RenderBuffer.join(name, "u1").claim(0)
    buffer.finish()


def slow_square(x: Any, region: tuple[slice, ...]) -> None:
    time.sleep(0.02)
    x[...] = np.arange(region[0].start, region[0].stop)[:, None] ** 2


def failing(x: Any, region: tuple[slice, ...]) -> None:
    if region[0].start >= 4:
        raise KeyError("no such tile")
    x[...] = 1


def deadly(x: Any, region: tuple[slice, ...]) -> None:
    # The first call kills its worker in the middle of the chunk.
    x[...] = 99
    marker = Path(os.environ["NDSHM_TEST_MARKER"])
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        slow_square(x, region)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def test_workers_paint_the_whole_array(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    array = ndshm.paint(name, (40, 3), (4, 3), "i4", slow_square, workers=2, order="F", progress=True)
    np.testing.assert_array_equal(array[...], np.tile(np.arange(40)[:, None] ** 2, 3))
    assert array.order == "F"
    assert "10/10" in capsys.readouterr().err


def test_chunk_of_a_killed_worker_is_painted_by_another(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NDSHM_TEST_MARKER", str(tmp_path / "marker"))
    array = ndshm.paint(name, (40, 3), (4, 3), "i4", deadly, workers=2)
    assert (tmp_path / "marker").exists()
    np.testing.assert_array_equal(array[...], np.tile(np.arange(40)[:, None] ** 2, 3))


def test_failing_function_is_reported_and_the_rest_resumed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ndshm.PaintError, match="no such tile"):
        ndshm.paint(name, (8, 3), (4, 3), "i4", failing, workers=1, fingerprint="work")
    with pytest.raises(ndshm.NotFound):
        ndshm.open(name)
    # The only worker dies. The chunk of the first call is kept.
    monkeypatch.setenv("NDSHM_TEST_MARKER", str(tmp_path / "marker"))
    with pytest.raises(ndshm.PaintError, match="call again"):
        ndshm.paint(name, (8, 3), (4, 3), "i4", deadly, workers=1, fingerprint="work")
    array = ndshm.paint(name, (8, 3), (4, 3), "i4", slow_square, workers=1, fingerprint="work")
    np.testing.assert_array_equal(array[:, 0], [1, 1, 1, 1, 16, 25, 36, 49])


def test_interrupted_paint_ends_its_workers(name: str, tmp_path: Path) -> None:
    (tmp_path / "painter.py").write_text(
        "import time, ndshm, sys\n"
        "def paint(x, region):\n    time.sleep(0.3)\n"
        "if __name__ == '__main__':\n"
        f"    ndshm.paint({name!r}, 1000, 1, 'u1', paint, workers=2)\n",
        encoding="utf-8",
    )
    with subprocess.Popen([sys.executable, "painter.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                if ndshm.RenderBuffer.join(name, "u1").progress[0] > 1:
                    break
            except ndshm.NotFound:
                pass
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]
    buffer = ndshm.RenderBuffer.join(name, "u1")
    done, total = buffer.progress
    assert 1 < done < total
    buffer.claim(0).release()  # type: ignore[union-attr]
    buffer.discard()


def _abandon(name: str, fingerprint: str = "old") -> None:
    """Leave an unfinished buffer, as a killed process does."""
    buffer = ndshm.RenderBuffer(name, (8, 4), (4, 4), "u1", fingerprint=fingerprint)
    with buffer.claim() as x:  # type: ignore[union-attr]
        x[:] = 1


def test_abandoned_buffer_is_listed_and_removed(name: str) -> None:
    _abandon(name)
    assert name not in [row.name for row in ndshm.ls()]
    [row] = [row for row in ndshm.ls(partial=True) if row.name == name]
    assert row == (name, 32, "uint8", (8, 4), "C", "old", (1, 2), False)
    assert not ndshm.unlink(name)
    assert ndshm.unlink(name, partial=True)
    assert not ndshm.unlink(name, partial=True)
    assert name not in [row.name for row in ndshm.ls(partial=True)]


def test_part_of_a_buffer_is_listed_and_removed(name: str) -> None:
    _abandon(name)
    os.unlink(f"/dev/shm/.ndshm-ledger-{name}")  # as a killed `discard` does
    [row] = [row for row in ndshm.ls(partial=True) if row.name == name]
    assert row == (name, 32, None, None, None, None, None, False)
    assert ndshm.unlink(name, partial=True)


def test_abandoned_buffer_of_other_work_is_replaced(name: str) -> None:
    _abandon(name)
    with pytest.raises(ndshm.Mismatch, match="no process is attached to it .replace=True replaces it, ndshm.unlink") as refused:
        ndshm.RenderBuffer(name, 5, 5, "f4", fingerprint="new")
    assert f'ndshm.unlink("{name}", partial=True)' in str(refused.value)
    buffer = ndshm.RenderBuffer(name, 5, 5, "f4", fingerprint="new", replace=True)
    assert buffer.progress == (0, 1)
    buffer.discard()


def test_attached_buffer_of_other_work_is_not_replaced(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, 4, 4, "u1", fingerprint="old")
    [row] = [row for row in ndshm.ls(partial=True) if row.name == name]
    assert row.attached
    with pytest.raises(ndshm.Mismatch, match="a process is attached to it, perhaps this one"):
        ndshm.RenderBuffer(name, 4, 4, "u1", fingerprint="new", replace=True)
    # A forked child inherits the attachment, and keeps it when its parent has left.
    near, far = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(far)
        os.read(near, 1)
        os._exit(0)
    os.close(near)
    del buffer
    with pytest.raises(ndshm.Mismatch, match="a process is attached"):
        ndshm.RenderBuffer(name, 4, 4, "u1", fingerprint="new", replace=True)
    os.close(far)
    os.waitpid(child, 0)
    ndshm.RenderBuffer(name, 4, 4, "u1", fingerprint="new", replace=True).discard()


def test_late_painter_gets_the_finished_array(name: str) -> None:
    def buffer(fingerprint: str = "rows", **others: Any) -> ndshm.RenderBuffer:
        return ndshm.RenderBuffer(name, SHAPE, CHUNK, "u2", "F", fingerprint=fingerprint, **others)

    first = buffer(exist_ok=True)
    assert len(_commit_all(first)) == 6
    array = first.finish()
    with pytest.raises(ndshm.AlreadyExists):
        buffer()
    late = buffer(exist_ok=True)
    assert late.progress == (6, 6) and list(late.claims()) == [] and late.claim(index=5) is None
    with late.chunk(5) as x:  # type: ignore[union-attr]
        assert x.shape == (2, 3, 4)
    same = late.finish()
    with same.write() as x:
        x[0, 0, 0] = 7
    assert array[0, 0, 0] == 7
    with pytest.raises(ndshm.Mismatch, match="finished array of another work"):
        buffer("columns", exist_ok=True)
    other = buffer("columns", exist_ok=True, replace=True)
    assert other.progress == (0, 6)
    other.discard()
    buffer(exist_ok=True, replace=True).discard()  # does nothing
    assert ndshm.open(name)[0, 0, 0] == 7
    ndshm.from_array(name, np.zeros(SHAPE, "u2"), replace=True)
    with pytest.raises(ndshm.AlreadyExists):
        buffer(exist_ok=True)


def test_chunk_is_claimed_and_read_by_its_number(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, SHAPE, CHUNK, "u2")
    other = ndshm.RenderBuffer.join(name, "u2")
    claim = buffer.claim(index=3)
    assert claim is not None and claim.number == 3
    with pytest.raises(BlockingIOError, match="chunk 3"):
        other.claim(0, index=3)
    with pytest.raises(TimeoutError, match="chunk 3"):
        other.claim(timeout=0.01, index=3)
    assert other.chunk(3) is None
    with claim as x:
        x[...] = 9
    assert other.claim(index=3) is None
    chunk = other.chunk(3)
    assert chunk is not None and (chunk.number, chunk.region) == (3, claim.region)
    with pytest.raises(ndshm.InUse):
        other.finish()
    with chunk as x:
        assert (x == 9).all() and x.shape == claim_shape(claim)
        with pytest.raises(ValueError, match="read-only"):
            x[...] = 1
        del x
    buffer.chunk(3).release()  # type: ignore[union-attr]
    for call in (buffer.claim, buffer.chunk):
        with pytest.raises(ndshm.InvalidArgument, match="6 chunks"):
            call(index=6)
        with pytest.raises(ndshm.InvalidArgument):
            call(index=-1)
        with pytest.raises(ndshm.InvalidArgument):
            call(index="1")  # type: ignore[arg-type]
    buffer.discard()
    with pytest.raises(ndshm.Unlinked):
        other.chunk(3)


def test_thread_does_not_wait_for_its_own_blocks(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, 6, 2, "u1")
    first, second = buffer.claim(index=0), buffer.claim(index=1)
    assert first is not None and second is not None
    with first as x:
        x[:] = 1
        with pytest.raises(ndshm.WouldDeadlock, match="with"):
            buffer.claim(index=0)
        with pytest.raises(ndshm.TimedOut):  # another thread may enter the claim of chunk 1
            buffer.claim(0.01, index=1)
        with second as y:
            y[:] = 2
            for claim in buffer.claims():  # chunk 2, and then only this thread's own are left
                with claim as z:
                    z[:] = 3
                break
            with pytest.raises(ndshm.WouldDeadlock):
                next(buffer.claims())
            with ThreadPoolExecutor() as threads:  # another thread may wait for this one
                waiting = threads.submit(buffer.claim, 0.01)
                assert isinstance(waiting.exception(), ndshm.TimedOut)
    assert buffer.claim() is None
    assert buffer.finish()[...].tolist() == [1, 1, 2, 2, 3, 3]


def test_threads_end_together_without_an_error(name: str) -> None:
    def paint(buffer: ndshm.RenderBuffer) -> int:
        painted = 0
        while (claim := buffer.claim()) is not None:
            with claim as x:
                x[:] = 1
            painted += 1
        return painted

    with ThreadPoolExecutor(4) as threads:
        for attempt in range(100):
            buffer = ndshm.RenderBuffer(name, 8, 1, "u1", fingerprint=str(attempt))
            assert sum(threads.map(paint, [buffer] * 4)) == 8
            buffer.discard()


def test_parts_of_a_buffer_are_no_arrays_while_it_replaces_one(name: str) -> None:
    ndshm.create(name, 6, "u1")
    buffer = ndshm.RenderBuffer(name, 6, 2, "u1", replace=True)
    assert [row.name for row in ndshm.ls() if name in row.name] == [name]
    buffer.discard()


def claim_shape(claim: ndshm.Claim) -> tuple[int, ...]:
    return tuple(axis.stop - axis.start for axis in claim.region)


def test_paint_accepts_what_was_finished(name: str) -> None:
    first = ndshm.paint(name, (8, 3), (4, 3), "i4", slow_square, workers=1)
    work = _identity(slow_square)
    again = ndshm.paint(name, (8, 3), (4, 3), "i4", failing, workers=1, fingerprint=work, exist_ok=True)
    np.testing.assert_array_equal(first[...], again[...])


_PAINT = "import ndshm; ndshm.paint({name!r}, 8, 4, 'u1', fill, workers=1)"


@pytest.mark.parametrize(
    ("program", "way", "advice"),
    [
        ("import sys; sys.modules['cloudpickle'] = None\ndef fill(x, region): x[:] = 1\n" + _PAINT, "-c", "write the function into a module"),
        ("import module; fill = module.fill\n" + _PAINT, "-", "put it into a file"),
        ("def fill(x, region): x[:] = 1\n" + _PAINT, "file", "put the call of `paint` under `if __name__"),
    ],
)
def test_what_workers_cannot_import_is_refused_with_advice(name: str, tmp_path: Path, program: str, way: str, advice: str) -> None:
    (tmp_path / "module.py").write_text("def fill(x, region): x[:] = 1\n")
    text = program.format(name=name)
    (tmp_path / "file.py").write_text(text)
    arguments = {"-c": ["-c", text], "-": ["-"], "file": ["file.py"]}[way]
    ended = subprocess.run([sys.executable, *arguments], cwd=tmp_path, input=text, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and advice in ended.stderr
    if way == "file":
        assert "all workers ended before one of them had painted a chunk" in ended.stderr
        assert ndshm.unlink(name, partial=True), "the parent had begun"
    assert not ndshm.unlink(name, partial=True)


def test_function_with_other_code_is_other_work(name: str) -> None:
    def changed(x: Any, region: Any) -> None:
        x[...] = 4

    changed.__module__, changed.__qualname__ = slow_square.__module__, slow_square.__qualname__
    assert _identity(slow_square) == _identity(slow_square) != _identity(changed)
    first, second = made_with(1), made_with(2)
    assert _identity(first) == _identity(made_with(1)) != _identity(second)
    assert _identity(partial(first, 1)) == _identity(partial(first, 1)) != _identity(partial(first, 2)) != _identity(partial(first, b=2))
    assert _identity(partial(slow_square)).startswith("test_render.slow_square ")
    assert _identity(recursive(True)) == _identity(recursive(True)) != _identity(recursive(False))
    programs = ["V = 1\n" + WORK, "V = 2\n" + WORK, "V = 1\n" + WORK.replace("try: A; B", "try: A"), "V = 1\n" + WORK]
    printed = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout for program in programs]
    assert printed[0] == printed[3] and len({*printed}) == 3 and len(printed[0]) > 9


def countdown(number: int) -> int:
    return number and countdown(number - 1)


def recursive(flag: bool) -> Any:
    def work(x: Any, region: Any) -> None:
        x[...] = countdown(3) if flag else work(x, region)

    return work


def made_with(value: int) -> Any:
    def work(x: Any, region: Any, a: int = value) -> None:
        x[...] = value

    return work


WORK = """
from ndshm._render import _identity

def known(x, region):
    try: A; B
    except ValueError: pass
    x[...] = region in {"one", "two", "three", "four", "five"} and V

print(_identity(known))
"""


def with_table(x: Any, region: tuple[slice, ...], table: Any) -> None:
    time.sleep(0.2)
    x[...] = table[1]


def test_each_worker_gets_the_arrays_of_the_function(name: str) -> None:
    table = ndshm.share(np.arange(4, dtype="u1"))
    painted = ndshm.paint(name, (8, 8), (1, 8), "u1", partial(with_table, table=table), workers=3)
    assert (painted == 1).all()
