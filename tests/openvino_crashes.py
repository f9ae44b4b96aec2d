"""A trial of OpenVINO as it goes on machines that announce more than they can do."""

import os
import signal

from yosegi.devices.openvino.probe import present  # noqa: F401


def wrong_rows(plugin, dtype):
    os.kill(os.getpid(), signal.SIGILL)


def prove(plugin, plain, place):
    os.kill(os.getpid(), signal.SIGKILL)


def reason_against(plugin, precision):
    os.kill(os.getpid(), signal.SIGILL)
