"""Event files, read by TensorBoard where it is installed, and by the checksums of the format."""

from __future__ import annotations

import struct

import pytest

import yosegi as ys
from yosegi.training.events import _masked_crc


def test_the_checksum_is_crc32c():
    crc = struct.unpack("<I", _masked_crc(b"123456789"))[0] - 0xA282EAD8 & 0xFFFFFFFF
    assert (crc >> 17 | crc << 15) & 0xFFFFFFFF == 0xE3069283  # the check value of CRC-32C


def test_tensorboard_reads_a_file(tmp_path):
    loader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader", reason="TensorBoard is not installed"
    )
    with ys.training.EventWriter(tmp_path) as events:
        for step in (1, 300):
            events.scalar("train/loss", step / 2, step)
    (file,) = tmp_path.iterdir()
    read = [
        (e.step, v.tag, v.tensor.float_val[0])
        for e in loader.EventFileLoader(str(file)).Load()
        for v in e.summary.value
    ]
    assert read == [(1, "train/loss", 0.5), (300, "train/loss", 150.0)]
