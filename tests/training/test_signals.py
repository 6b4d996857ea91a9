"""A request to stop: asked once, insisted on, and the handlers of before put back."""

import signal

import pytest

from verydeep.training.signals import StopRequest


def test_the_first_signal_asks_and_the_same_again_insists():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        assert stop.name is None
        signal.raise_signal(signal.SIGTERM)
        assert stop.name == "SIGTERM"
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_signal_after_the_first_does_not_insist():
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert stop.name == "SIGINT"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.name is None
    finally:
        signal.signal(signal.SIGHUP, before)
