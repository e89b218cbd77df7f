"""The kernels in C compute what the Python code computes, with every set of instructions that this processor has."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tradewind import native
from tradewind.arithmetic import Arithmetic
from tradewind.native import BLOCK_BYTES, LEAST_BLOCK_BYTES, Kernels, addition, can_sum, kernels, load, using_kernels
from tradewind.native.build import FLAGS, FLOATS, FOLDER, LIBRARY, SOURCES, CannotBuild, build, compiler
from tradewind.runtime.sockets import set_timeout
from tradewind.wire import frames

HAS_COMPILER = any(map(shutil.which, ("cc", "gcc", "clang")))
LONGEST_S = 30.0
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")


@needs_compiler
@pytest.mark.skipif(native.VARIABLE in native.why_not(), reason="switched off")
def test_where_a_compiler_exists_the_tests_use_the_kernels() -> None:
    assert native.why_not() == "" and kernels() is not None
    with using_kernels(None):
        assert native.why_not() and kernels() is None
    assert kernels() is not None


def test_constants_are_those_of_frames() -> None:
    assert BLOCK_BYTES == frames.BLOCK_BYTES and native.sums_bytes(BLOCK_BYTES + 1) == 2 * frames.SUM_BYTES


# --- checksums -------------------------------------------------------------------------------------------------------


@given(st.one_of(st.integers(LEAST_BLOCK_BYTES, 3000), st.integers(0, 3 * BLOCK_BYTES)), st.integers(0, 64), st.data())
def test_checksums_are_those_of_xxhash(compiled: Kernels, nbytes: int, offset: int, data: st.DataObject) -> None:
    if not can_sum(nbytes):
        nbytes += LEAST_BLOCK_BYTES
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    payload = random.integers(0, 256, offset + nbytes, dtype=np.uint8).data[offset:]
    expected = [xxhash.xxh3_64_digest(payload[at : at + BLOCK_BYTES]) for at in range(0, nbytes, BLOCK_BYTES)]
    assert compiled.sums(payload) == b"".join(expected)


@given(st.integers(1, 3 * BLOCK_BYTES), st.integers(0, 2**32))
def test_checksums_of_frames_do_not_depend_on_kernels(nbytes: int, seed: int) -> None:
    payload = np.random.default_rng(seed).bytes(nbytes)
    with using_kernels(None):
        expected = frames.sums_of(payload)
    assert frames.sums_of(payload) == expected


# --- sums ------------------------------------------------------------------------------------------------------------

SPECIAL = (0.0, -0.0, 1e-45, -1e-40, 3.4e38, np.inf, -np.inf, np.nan, 1.0 + 2.0**-23, 1.0 / 3.0)


def items_of(dtype: str, count: int, random: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    if dtype.startswith("int"):
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, count, dtype=dtype, endpoint=True)
    values = random.standard_normal(count) * 10.0 ** random.integers(-30, 30, count)
    where = random.random(count) < 0.1
    return np.where(where, random.choice(SPECIAL, count), values).astype(dtype)


@given(
    st.sampled_from([*native.KINDS]),
    st.integers(1, 3000),
    st.booleans(),
    st.booleans(),
    st.tuples(*(st.sampled_from([1.0, factor]) for factor in (0.3, 1.0 / 3.0, 0.7))),
    st.integers(0, 2**32),
)
def test_sums_are_those_of_numpy(
    compiled: Kernels,
    dtype: str,
    count: int,
    own: bool,
    in_place: bool,
    factors: tuple[float, float, float],
    seed: int,
) -> None:
    weight, scale, came_weight = factors if dtype.startswith("float") else (1.0, 1.0, 1.0)
    random = np.random.default_rng(seed)
    first, came = items_of(dtype, count, random), items_of(dtype, count, random)
    out = first if in_place else np.empty_like(first)
    arithmetic, expected = Arithmetic(dtype, "sum", weight, scale), first.copy()
    with np.errstate(all="ignore"):
        arithmetic.adder(own, True, came_weight)(first.copy(), came, out=expected)
    adding = addition(first, out, weight if own else 1.0, came_weight, scale)
    assert adding is not None
    half = count // 2 * first.itemsize
    compiled.add(adding, came, 0, half)
    compiled.add(adding, came.view(np.uint8)[half:], half, came.nbytes - half)
    kept = slice(None) if dtype.startswith("int") else ~np.isnan(expected)
    assert out[kept].tobytes() == expected[kept].tobytes(), "the same bits"
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))


def test_other_types_and_factors_of_whole_numbers_are_left_to_numpy() -> None:
    for dtype in ("float16", "uint8", "bool", "uint16"):
        assert addition(np.zeros(4, dtype), np.zeros(4, dtype)) is None
    assert addition(np.zeros(4, np.int32), np.zeros(4, np.int32), scale=0.5) is None
    assert addition(np.zeros(4, np.int32), np.zeros(4, np.int32)) is not None


# --- receiving -------------------------------------------------------------------------------------------------------


def send_later(sock: socket.socket, *parts: bytes) -> threading.Thread:
    """Send parts from a thread, and then end the stream."""

    def send() -> None:
        for part in parts:
            sock.sendall(part)
        sock.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("nbytes", [4, 1000, BLOCK_BYTES, BLOCK_BYTES + 300 * 4, 5 * BLOCK_BYTES])
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("adds", [False, True])
def test_a_payload_is_received_and_added(compiled: Kernels, nbytes: int, summed: bool, adds: bool) -> None:
    if summed and not can_sum(nbytes):
        pytest.skip("left to Python")
    here, there = socket.socketpair()
    came = np.arange(nbytes // 4, dtype=np.int32)
    first, out = np.full_like(came, 7), np.zeros_like(came)
    sending = send_later(there, came.tobytes())
    sums = frames.sums_of(came.tobytes()) if summed else b""
    place = np.empty(BLOCK_BYTES if adds else nbytes, np.uint8)
    adding = addition(first, out) if adds else None
    assert compiled.receive(here.fileno(), place.data, 0, nbytes, sums, adding) == nbytes
    np.testing.assert_array_equal(out if adds else place.view(np.int32), came + 7 if adds else came)
    sending.join(LONGEST_S)
    with pytest.raises(ConnectionResetError):
        compiled.receive(here.fileno(), place.data, 0, min(nbytes, len(place)), b"")
    here.close()
    there.close()


@pytest.mark.parametrize("adds", [False, True])
def test_a_changed_block_is_not_added_and_the_rest_can_follow(compiled: Kernels, adds: bool) -> None:
    here, there = socket.socketpair()
    nbytes = 4 * BLOCK_BYTES
    came = np.arange(nbytes // 4, dtype=np.float32)
    sums = frames.sums_of(came.tobytes())
    changed = came.copy()
    changed[2 * BLOCK_BYTES // 4 + 5] += 1
    out = np.zeros_like(came)
    place = np.empty(BLOCK_BYTES if adds else nbytes, np.uint8)
    adding = addition(out, out) if adds else None
    sending = send_later(there, changed.tobytes())
    assert compiled.receive(here.fileno(), place.data, 0, nbytes, sums, adding) == 2 * BLOCK_BYTES
    third = slice(2 * BLOCK_BYTES // 4, 3 * BLOCK_BYTES // 4)
    held = place.view(np.float32) if adds else place.view(np.float32)[third]
    np.testing.assert_array_equal(held, changed[third], "the block is in its place")
    assert not out[third.start :].any()
    assert compiled.receive(here.fileno(), place.data, 3 * BLOCK_BYTES, nbytes, sums, adding) == nbytes
    sending.join(LONGEST_S)
    if adds:
        assert not out[third].any() and (out[third.stop :] == came[third.stop :]).all()
    here.close()
    there.close()


def test_shutdown_wakes_a_thread_that_receives(compiled: Kernels) -> None:
    here, there = socket.socketpair()
    ended: list[OSError] = []

    def wait() -> None:
        try:
            compiled.receive(here.fileno(), memoryview(bytearray(1000)), 0, 1000, b"")
        except OSError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    there.sendall(bytes(999))
    here.shutdown(socket.SHUT_RDWR)
    waiting.join(LONGEST_S)
    assert isinstance(ended[0], ConnectionResetError)
    here.close()
    there.close()


def test_errors_of_the_system_have_their_numbers(compiled: Kernels) -> None:
    here, there = socket.socketpair()
    set_timeout(here, 0.01)
    with pytest.raises(BlockingIOError):  # as from a method of the socket
        compiled.receive(here.fileno(), memoryview(bytearray(10)), 0, 10, b"")
    with Path(os.devnull).open("rb") as file, pytest.raises(OSError) as caught:
        compiled.receive(file.fileno(), memoryview(bytearray(10)), 0, 10, b"")
    assert caught.value.errno == errno.ENOTSOCK
    here.close()
    there.close()


def test_memory_that_is_too_small_is_refused(compiled: Kernels) -> None:
    with pytest.raises(ValueError, match="9 bytes of memory"):
        compiled.receive(0, memoryview(bytearray(9)), 0, 10, b"")
    with pytest.raises(ValueError, match="8 of checksums"):
        compiled.receive(0, memoryview(bytearray(2 * BLOCK_BYTES)), 0, 2 * BLOCK_BYTES, bytes(8))


# --- building and loading --------------------------------------------------------------------------------------------


def test_a_library_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    assert "not compiled" in str(load(tmp_path / LIBRARY))
    (tmp_path / LIBRARY).write_text("no library")
    assert "cannot be loaded" in str(load(tmp_path / LIBRARY))


@needs_compiler
def test_a_library_of_another_release_is_not_used(tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_text('__attribute__((visibility("default"))) int tw_abi(void) { return 99; }')
    subprocess.run([*compiler(), *FLAGS, str(source), "-o", str(tmp_path / LIBRARY)], check=True)
    assert "interface 99" in str(load(tmp_path / LIBRARY))


@needs_compiler
def test_the_source_compiles_without_a_warning() -> None:
    command = [*compiler(), *FLAGS, *FLOATS, "-Werror", "-fsyntax-only", str(FOLDER / SOURCES[0])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_a_compiler_the_build_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CannotBuild, match="no-such-compiler could not be run"):
        build(tmp_path)
    monkeypatch.setenv("CC", "false")
    with pytest.raises(CannotBuild, match="false failed"):
        build(tmp_path)
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CannotBuild, match="no C compiler"):
        build(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_kernels_can_be_switched_off() -> None:
    asked = "from tradewind import native; print(native.kernels(), native.why_not())"
    environment = {**os.environ, native.VARIABLE: "0"}
    said = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout == "None switched off by TRADEWIND_NATIVE\n"


@pytest.mark.parametrize("value", ["0", "1"])
def test_doctor_says_whether_they_are_used(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(native.VARIABLE, value)
    done = subprocess.run(
        [sys.executable, "-m", "tradewind", "doctor", "--no-lab"], capture_output=True, text=True, check=False
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(" kernels in C")]
    assert ("switched off" in line) == (value == "0")
    assert "options             ok" in done.stdout, "the variable is known"


def test_no_library_is_in_the_repository() -> None:
    assert FOLDER.name == "native" and "*.so" in (FOLDER.parents[2] / ".gitignore").read_text().split()
