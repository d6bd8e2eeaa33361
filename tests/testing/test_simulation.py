"""Simulated storms break no promise, and the simulation would notice if they did."""

from __future__ import annotations

import pytest

from tests.simulation import shrink, simulate
from tests.simulation.bugs import BUGS, catches


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_storms_break_no_promise(first: int):
    stories = [simulate(seed, 50) for seed in range(first, first + 25)]
    assert [story.tell() for story in stories if story.violations] == []
    assert sum(len(story.struck) for story in stories) > 25 * 20


def test_a_seed_tells_the_same_story_twice():
    first, again = simulate(11, 50), simulate(11, 50)
    assert first == again
    assert first.events > 0


def test_there_are_at_least_twenty_planted_bugs():
    assert len(BUGS) >= 20


@pytest.mark.parametrize("name", BUGS, ids=lambda name: name.replace(" ", "-"))
def test_a_planted_bug_is_caught(name: str):
    story = catches(name, range(150))
    assert story is not None, f"no story shows that {name}"


def test_a_broken_story_is_shrunk_to_few_faults():
    name = "a new server leaves unfinished executions alone"
    story = catches(name, faults=8)
    assert story is not None

    def again(only: frozenset[int]):
        with BUGS[name]():
            return simulate(story.seed, story.faults, executions=4, only=only)

    small = shrink(story, again)
    assert small.violations
    assert len(small.struck) < len(story.struck)
