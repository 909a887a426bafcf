"""A request that is to be computed alone: nothing runs beside it, and those who wait keep their places."""

from __future__ import annotations

from engine.types import Finished, Priority
from tests.support.corekit import CoreKit, fake_kit

LONG = {"reply": "x" * 60}


def beside(kit: CoreKit, name: str) -> set[str]:
    """Who ran together with `name` in any step since the last look."""
    mates: set[str] = set()
    while kit.core.has_work:
        running = {job.id for job in kit.core._running.values()}
        if name in running:
            mates |= running - {name}
        kit.step()
    return mates


def test_it_waits_for_the_others_and_they_wait_for_it() -> None:
    kit = fake_kit(LONG)
    kit.ask("before", owner="a")
    kit.step(5)
    kit.ask("suspect", alone=True, owner="b")
    kit.ask("after", owner="c")
    kit.step(3)
    assert kit.start_order == ["before"], "nobody is overtaken while it waits"
    assert kit.places("suspect") == [1]
    assert kit.places("after") == [2]
    assert beside(kit, "suspect") == set()
    assert kit.start_order == ["before", "suspect", "after"]
    assert all(isinstance(kit.end(name), Finished) for name in ("before", "suspect", "after"))
    kit.check_end()


def test_suspects_run_one_after_the_other_and_the_rest_together() -> None:
    kit = fake_kit(LONG)
    for name in ("s1", "s2"):
        kit.ask(name, alone=True, owner=name)
    for name in ("f1", "f2", "f3"):
        kit.ask(name, owner=name)
    alone: list[set[str]] = []
    together: list[set[str]] = []
    while kit.core.has_work:
        kit.step()
        running = {job.id for job in kit.core._running.values()}
        (alone if running & {"s1", "s2"} else together).append(running)
    assert all(len(running) == 1 for running in alone)
    assert {"f1", "f2", "f3"} in together
    kit.check_end()


def test_background_work_makes_way_and_comes_back() -> None:
    kit = fake_kit(LONG)
    kit.core.warm("other talk", "s", kit.ids("words " * 60))
    kit.ask("summary", priority=Priority.BACKGROUND, owner="b")
    kit.step()
    assert len(kit.core._running) == 2
    kit.ask("suspect", alone=True, owner="a")
    kit.step()
    assert [job.id for job in kit.core._running.values()] == ["suspect"]
    assert beside(kit, "suspect") == set()
    assert isinstance(kit.end("summary"), Finished)
    assert kit.core.stats().n_sequences_kept >= 1


def test_a_suspect_that_is_cancelled_lets_the_others_go_on() -> None:
    kit = fake_kit(LONG)
    kit.ask("suspect", alone=True, owner="a")
    kit.ask("after", owner="b")
    kit.step(3)
    assert kit.start_order == ["suspect"]
    kit.core.cancel("suspect")
    kit.run()
    assert kit.start_order == ["suspect", "after"]
