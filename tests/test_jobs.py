"""Jobs on workers: results of one process in its order, whoever dies; what is refused."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from m2bayes._jobs import in_turn
from m2bayes.errors import DataError
from m2bayes.sweeping import cluster

distributed = pytest.importorskip("distributed", reason="needs pip install 'm2bayes[sweep]'")
JOBS = list(range(12))


@pytest.fixture(scope="module")
def two():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
    ) as found:
        yield found


def slow_first(shared, job):
    """Later jobs are done before earlier ones."""
    time.sleep(0.2 if job % 2 == 0 else 0.0)
    return shared[job] * 2


def fatal(shared, job):
    os.kill(os.getpid(), signal.SIGKILL)


def refused(shared, job):
    raise DataError(f"job {job} cannot be done; ask another")


@pytest.fixture
def shared(rng):
    return rng.standard_normal(len(JOBS))


def test_results_come_in_the_order_of_the_jobs(two, shared):
    with cluster.spread(0, two.scheduler_address) as each:
        found = list(each(slow_first, shared, JOBS))
    assert each is not in_turn
    np.testing.assert_array_equal(found, list(in_turn(slow_first, shared, JOBS)))


def threads(shared, job):
    from m2bayes import _jobs

    at = []
    _jobs.in_threads(lambda i: at.append(threading.get_ident()), 8, busy=True)
    return {*at} == {threading.get_ident()}


def test_a_worker_leaves_the_other_cores_to_the_others(two, shared):
    with cluster.spread(0, two.scheduler_address) as each:
        assert list(each(threads, shared, [0, 1])) == [True, True]


def test_without_workers_everything_is_done_here(shared):
    with cluster.spread(0) as each:
        assert each is in_turn
        assert list(each(lambda held, job: (os.getpid(), job), shared, JOBS)) == [
            (os.getpid(), job) for job in JOBS
        ]


def test_a_worker_that_is_killed_costs_nothing_but_time(two, shared):
    """Both are killed in turn, so what all share is lost once, too."""
    found, killed = [], []
    with cluster.spread(0, two.scheduler_address) as each:
        for value in each(slow_first, shared, JOBS):
            found.append(value)
            if len(found) in {1, 5}:
                pids = [n.pid for n in two.workers.values() if n.pid and n.pid not in killed]
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])
    assert len(killed) == 2
    np.testing.assert_array_equal(found, shared * 2)


def test_a_job_that_kills_its_workers_is_told(two, shared, monkeypatch):
    monkeypatch.setattr(two.scheduler, "allowed_failures", 0)  # of 3: each takes a new process
    with (
        cluster.spread(0, two.scheduler_address) as each,
        pytest.raises(DataError, match="died over and over"),
    ):
        list(each(fatal, shared, JOBS[:1]))


def test_what_a_job_refuses_is_refused_here(two, shared):
    with (
        cluster.spread(0, two.scheduler_address) as each,
        pytest.raises(DataError, match="job 3 cannot be done"),
    ):
        list(each(refused, shared, [3]))


def test_a_worker_with_another_version_is_refused(two, shared, monkeypatch):
    monkeypatch.setattr(cluster, "version", lambda name: "0.0.0")
    with (
        cluster.spread(0, two.scheduler_address) as each,
        pytest.raises(DataError, match=r"a worker has m2bayes .*, not 0\.0\.0; install the same"),
    ):
        list(each(slow_first, shared, JOBS[:2]))
