"""The queue in front of the ranker: order, batches, fairness, refusals, those who leave, and the end."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from service_world import until

from ranker.service.batcher import Batcher, ClosedError, DeadlineError, QueueFullError


class Work:
    """Doubles its items; `gate` holds it back."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.batches: list[list[int]] = []
        self.threads: set[int] = set()

    def __call__(self, items):
        self.batches.append(list(items))
        self.threads.add(threading.get_ident())
        assert self.gate.wait(20)
        if -1 in items:
            raise ValueError("minus one")
        return [2 * item for item in items]


@pytest.fixture
def work():
    return Work()


def start(work, **options):
    batcher = Batcher(**{"limit": 100, "max_batch": 8, **options})
    first = batcher.submit("k", work, [0], [1])  # keeps the worker busy until the gate opens
    until(lambda: work.batches == [[0]])
    return batcher, first


def results(future: Future):
    return future.result(20).results


def test_jobs_that_wait_are_ranked_together_in_one_thread(work):
    batcher, first = start(work)
    futures = [batcher.submit("k", work, [i, i + 10], [1, 1]) for i in range(1, 4)]
    work.gate.set()
    assert results(first) == [0]
    assert [results(f) for f in futures] == [[2, 22], [4, 24], [6, 26]]
    assert work.batches[1] == [1, 11, 2, 12, 3, 13]
    assert len(work.threads) == 1
    batcher.close()


def test_other_keys_get_calls_of_their_own(work):
    batcher, _ = start(work)
    futures = [batcher.submit(i % 2, work, [i], [1]) for i in range(1, 5)]
    work.gate.set()
    assert [results(f) for f in futures] == [[2], [4], [6], [8]]
    assert work.batches[1:] == [[1, 3], [2, 4]]
    batcher.close()


def test_a_large_job_shares_batches_with_a_small_one(work):
    batcher, _ = start(work)
    large = batcher.submit("k", work, list(range(100, 120)), [1] * 20)
    small = batcher.submit("k", work, [1, 2], [1, 1])
    work.gate.set()
    assert results(small) == [2, 4]
    assert results(large) == list(range(200, 240, 2))
    assert work.batches[1] == [100, 101, 102, 103, 104, 105, 1, 2]
    assert [len(batch) for batch in work.batches[2:]] == [8, 6]
    batcher.close()


def test_an_item_that_costs_more_than_a_batch_goes_alone(work):
    batcher, _ = start(work)
    futures = [batcher.submit("k", work, [item], [cost]) for item, cost in ((1, 3), (2, 50), (3, 3))]
    work.gate.set()
    assert [results(f) for f in futures] == [[2], [4], [6]]
    assert work.batches[1:] == [[1, 3], [2]]
    batcher.close()


def test_a_full_queue_refuses_and_says_when_to_come_again(work):
    batcher, first = start(work, limit=4)
    accepted = batcher.submit("k", work, [1, 2, 3], [1, 1, 1])
    assert batcher.waiting == 4
    with pytest.raises(QueueFullError, match="4 texts") as error:
        batcher.submit("k", work, [4], [1])
    assert error.value.retry_after >= 1
    work.gate.set()
    assert results(first) == [0]
    assert results(accepted) == [2, 4, 6]
    until(lambda: batcher.waiting == 0)
    assert results(batcher.submit("k", work, [4], [1])) == [8]
    assert results(batcher.submit("k", work, list(range(9)), [1] * 9)) == list(range(0, 18, 2))  # larger than the queue
    batcher.close()


def test_who_left_is_not_worked_for_and_gives_room(work):
    batcher, _ = start(work, limit=3)
    left = batcher.submit("k", work, [1, 2], [1, 1])
    with pytest.raises(QueueFullError):
        batcher.submit("k", work, [3], [1])
    assert left.cancel()
    stays = batcher.submit("k", work, [3], [1])
    work.gate.set()
    assert results(stays) == [6]
    assert work.batches == [[0], [3]]
    batcher.close()


def test_one_bad_job_does_not_cost_its_neighbours(work):
    batcher, _ = start(work)
    good, bad, other = (batcher.submit("k", work, [i], [1]) for i in (1, -1, 2))
    work.gate.set()
    assert results(good) == [2]
    assert results(other) == [4]
    with pytest.raises(ValueError, match="minus one"):
        bad.result(20)
    assert results(batcher.submit("k", work, [5], [1])) == [10]
    batcher.close()


def test_a_failed_job_is_not_continued(work):
    batcher, _ = start(work, max_batch=2)
    bad = batcher.submit("k", work, [-1, 1, 2, 3], [1] * 4)
    work.gate.set()
    with pytest.raises(ValueError, match="minus one"):
        bad.result(20)
    batcher.close()
    assert [2, 3] not in work.batches


def test_a_job_that_nobody_began_in_time_is_given_up(work):
    batcher, first = start(work, deadline=60)
    batcher._deadline = 0.01  # only now: a busy machine may be slow to begin
    late = batcher.submit("k", work, [1], [1])
    threading.Event().wait(0.05)
    work.gate.set()
    with pytest.raises(DeadlineError, match=r"0\.01 s"):
        late.result(20)
    assert results(first) == [0]
    assert work.batches == [[0]]
    batcher.close()


def test_the_end_answers_what_was_accepted(work):
    batcher, first = start(work, window=0.005)
    futures = [batcher.submit("k", work, [i], [1]) for i in range(1, 30)]
    closing = threading.Thread(target=batcher.close)
    closing.start()
    work.gate.set()
    closing.join(20)
    assert results(first) == [0]
    assert [results(f) for f in futures] == [[2 * i] for i in range(1, 30)]
    with pytest.raises(ClosedError):
        batcher.submit("k", work, [1], [1])


def test_stages_and_costs_are_told():
    spent = {"lanes": 0.0}

    def work(items):
        spent["lanes"] += 0.25
        return items

    seen = []
    batcher = Batcher(
        limit=10, max_batch=4, stages=lambda: dict(spent), observe=lambda cost, seconds: seen.append((cost, seconds))
    )
    answer = batcher.submit("k", work, ["a", "b"], [2, 1]).result(20)
    batcher.close()
    assert answer.results == ["a", "b"]
    assert answer.milliseconds["lanes"] == 250
    assert set(answer.milliseconds) == {"queue", "lanes", "rank"}
    assert seen[0][0] == 3
    assert seen[0][1]["lanes"] == 0.25


def test_many_threads_get_their_own_results():
    batcher = Batcher(limit=10_000, max_batch=16, window=0.001)
    wrong = []

    def client(number):
        for i in range(30):
            items = list(range(number, number + i % 5 + 1))
            future = batcher.submit(i % 3, lambda xs: [x + 1 for x in xs], items, [1] * len(items))
            if results(future) != [item + 1 for item in items]:
                wrong.append((number, i))

    threads = [threading.Thread(target=client, args=(100 * number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    batcher.close()
    assert not wrong
