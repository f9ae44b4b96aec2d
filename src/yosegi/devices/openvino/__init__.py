"""OpenVINO: a compiler of whole subgraphs, for the CPU, and for Intel's GPUs and NPUs where they are."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from ...device import Absent, Device
from .device import OpenVINO
from .probe import verdict


def discover() -> Iterable[Device | Absent]:
    """A device for each plugin that came through its trial. OpenVINO itself is loaded when it first compiles."""
    if find_spec("openvino") is None:
        return (Absent("openvino:0", "openvino is not installed; install yosegi[openvino]"),)
    known = verdict()
    if known["failure"] is not None:
        return (Absent("openvino:0", f"a trial in a child process failed: {known['failure']}"),)
    found: list[Device | Absent] = []
    for number, told in enumerate(known["plugins"]):
        if told["failure"] is None:
            found.append(OpenVINO(told["plugin"], number, told["description"], told["wrong"], told["against"]))
        else:
            reason = f"{told['plugin']}: a trial in a child process failed: {told['failure']}"
            found.append(Absent(f"openvino:{number}", reason))
    return found or (Absent("openvino:0", "none of its plugins finds a device"),)
