"""A trial of OpenVINO whose lower precisions end the process."""

from openvino_crashes import reason_against  # noqa: F401
from yosegi.devices.openvino.probe import present, wrong_rows  # noqa: F401
