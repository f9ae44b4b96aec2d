"""Calls in a child process: whatever happens there, this process goes on."""

import ctypes
import os
import time

import pytest

from yosegi._run.child import ChildResult, attempt


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
        (("add", 1, 2), ChildResult(result=3)),
        (("chatter",), ChildResult(result={"ok": [1, 2]})),
        (("complain",), ChildResult(failure="ValueError: the compiler is confused")),
        (("crash",), ChildResult(failure="it ended the process with SIGSEGV")),
        (("kill", 4), ChildResult(failure="it ended the process with SIGILL")),
    ],
)
def test_attempt(call, outcome):
    name, *arguments = call
    assert attempt(f"test_child:{name}", *arguments) == outcome


def test_a_trial_that_never_returns_is_ended():
    assert attempt("test_child:sleep", timeout=2) == ChildResult(failure="it did not return within 2 s")
