"""A request to stop: asked once, insisted on, and the handlers of before put back."""

import signal

import pytest

from verydeep.training.signals import StopRequest


def test_the_first_signal_asks_and_ctrl_c_again_insists():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        assert stop.name is None
        signal.raise_signal(signal.SIGINT)
        assert stop.name == "SIGINT"
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_launchers_signal_never_insists(first: signal.Signals):
    with StopRequest() as stop:
        signal.raise_signal(first)
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
        assert stop.name == first.name


def test_ctrl_c_twice_insists_whatever_came_before():
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stop.name == "SIGTERM"
        signal.raise_signal(signal.SIGINT)


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.name is None
    finally:
        signal.signal(signal.SIGHUP, before)
