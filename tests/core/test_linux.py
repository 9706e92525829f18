import ctypes
import os
import platform
import struct
import subprocess
import threading

import pytest

from forebay.linux import ask_for_short_slices
from tests.support.cluster import running_cluster

_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}

needs_slices = pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (6, 12), reason="Linux 6.12 and later have slices"
)


def slice_ns(thread: int = 0) -> int:
    """The time slice of a thread, 0 for the calling one."""
    attributes = ctypes.create_string_buffer(56)
    call = _SCHED_GETATTR[platform.machine()]
    assert ctypes.CDLL(None).syscall(call, thread, attributes, len(attributes), 0) == 0
    return struct.unpack_from("=Q", attributes, 24)[0]


def in_thread(work):
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


@needs_slices
def test_short_slices_are_not_inherited():
    """Threads and processes that such a thread starts have the usual time slices."""
    # This thread may have short ones since an earlier test.
    before, usual = slice_ns(), in_thread(slice_ns)

    def asks():
        ask_for_short_slices()
        with subprocess.Popen(["sleep", "60"]) as child:
            of_child = slice_ns(child.pid)
            child.kill()
        return slice_ns(), in_thread(slice_ns), of_child

    assert in_thread(asks) == (100_000, usual, usual)
    assert slice_ns() == before
    assert usual > 100_000


def test_a_thread_with_a_policy_of_its_own_keeps_it():
    def asks():
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        ask_for_short_slices()
        return os.sched_getscheduler(0)

    assert in_thread(asks) == os.SCHED_BATCH


@needs_slices
def test_the_threads_that_answer_reads_have_short_slices(tmp_path):
    with running_cluster(tmp_path) as cluster:
        worker = cluster.workers[cluster.start_worker()]
        router = cluster.router_process(cluster.start_router())
        assert [slice_ns(worker.pid), slice_ns(router.pid)] == [100_000, 100_000]
