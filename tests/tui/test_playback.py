"""A replay that goes by itself, without a screen."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from watchkeeper_tui.replay_source import IDLE_SECONDS, SPEEDS, Playback


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 50), min_size=1, max_size=60), st.floats(0.01, 30), st.integers(0, 6), st.booleans()
)
def test_playing_comes_to_the_end_and_never_goes_back(gaps, tick, faster, skips):
    times = [sum(gaps[: place + 1]) for place in range(len(gaps))]
    playback = Playback(times)
    playback.change_speed(faster)
    playback.skips_idle = skips
    playback.play()
    seen = [playback.position]
    whole = sum(min(gap, IDLE_SECONDS) if skips else gap for gap in gaps[1:])
    for _ in range(int(whole / SPEEDS[faster] / tick) + 3):
        playback.advance(tick)
        seen.append(playback.position)
    assert seen == sorted(seen)
    assert playback.at_end
    assert not playback.playing


def test_at_the_sessions_pace_a_step_comes_when_its_time_comes() -> None:
    playback = Playback([10.0, 11.0, 61.0, 62.0])
    playback.play()
    playback.skips_idle = False
    assert [playback.advance(seconds) and playback.position for seconds in (0.9, 0.2, 49.8, 0.2)] == [
        False, 2, False, 3,
    ]  # fmt: skip
    playback.go(2)
    playback.playing = playback.skips_idle = True
    assert playback.advance(IDLE_SECONDS + 0.1)
