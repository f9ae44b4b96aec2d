"""Calls in a child process: whatever happens there, this process goes on."""

import ctypes
import os
import time

import pytest

from yosegi._run.child import Outcome, attempt


def add(a, b):
    return a + b


def complain():
    raise ValueError("the compiler is confused")


def crash():
    ctypes.string_at(0)


def kill(number):
    os.kill(os.getpid(), number)


def sleep():
    time.sleep(60)


def chatter():
    print("loading…")
    return {"ok": [1, 2]}


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        (("add", 1, 2), Outcome(result=3)),
        (("chatter",), Outcome(result={"ok": [1, 2]})),
        (("complain",), Outcome(failure="ValueError: the compiler is confused")),
        (("crash",), Outcome(failure="it ended the process with SIGSEGV")),
        (("kill", 4), Outcome(failure="it ended the process with SIGILL")),
    ],
)
def test_attempt(call, outcome):
    name, *arguments = call
    assert attempt(f"test_child:{name}", *arguments) == outcome


def test_a_trial_that_never_returns_is_ended():
    assert attempt("test_child:sleep", timeout=2) == Outcome(failure="it did not return within 2 s")
