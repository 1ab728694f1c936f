import pytest

from rlhf_trainer.telemetry.phases import Phases


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_times_are_summed_by_phase_and_drained_once():
    clock = FakeClock()
    phases = Phases(clock=clock)
    for seconds in (2.0, 3.0):
        with phases("rollout"):
            clock.now += seconds
    with phases("update"):
        clock.now += 1.0
    assert phases.drain() == {"timing_s/rollout": 5.0, "timing_s/update": 1.0}
    assert phases.drain() == {}


def test_heart_beats_at_begin_end_and_when_told():
    clock, beats = FakeClock(), []
    phases = Phases(beats.append, clock)
    with phases("rollout"):
        clock.now += 40
        assert phases.age_seconds == 40
        assert phases.elapsed_seconds == 40
        phases.beat()
        assert phases.age_seconds == 0
    assert beats == ["rollout", "rollout", "rollout"]


def test_inner_phase_is_the_current_one_meanwhile():
    phases = Phases()
    assert phases.current == "starting"
    with phases("save"):
        with phases("export"):
            assert phases.current == "export"
        assert phases.current == "save"
    assert phases.current == "save"


def test_innermost_phase_of_an_exception_is_remembered():
    phases = Phases()
    with pytest.raises(RuntimeError), phases("step"), phases("sync"):
        raise RuntimeError
    assert phases.failed_in == "sync"
    assert set(phases.drain()) == {"timing_s/step", "timing_s/sync"}
    with phases("rollout"):
        assert phases.failed_in is None
