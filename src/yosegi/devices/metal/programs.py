"""Kernels as Metal compiles them: in memory by their source, on disk as binary archives by source, GPU and system."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, final

from ..._tune.store import ProgramCache
from ...codegen.c.kernel_source import NAME
from ...errors import CompileFailure
from .commands import foundation, metal, pool

_ARCHIVED_ONLY: Final = 1 << 2  # MTLPipelineOptionFailOnBinaryArchiveMiss
_LENGTH: Final = 8
"""Bytes of the length of a source, before it and its archive."""


def library_of(device: Any, source: str) -> tuple[Any, Any]:
    """The library of a source, or `None` and the error. Fast mathematics would take it that there are no NaN."""
    options = metal()[0].MTLCompileOptions.alloc().init()
    options.setFastMathEnabled_(False)
    made: tuple[Any, Any] = device.newLibraryWithSource_options_error_(source, options, None)
    return made


@final
class Programs(ProgramCache):
    """The pipelines of one device. An archive has the machine code; the source is needed with it."""

    def __init__(self, device: Any, identity: str) -> None:
        self._device = device
        super().__init__(identity)

    def load(self, code: bytes) -> Any | None:
        """The pipeline of a source whose machine code is in an archive; `None` if Metal does not take it."""
        end = _LENGTH + int.from_bytes(code[:_LENGTH], "little")
        with pool(), TemporaryDirectory() as folder:
            path = Path(folder) / "archive"
            path.write_bytes(code[end:])
            archive = self._archive(path)
            library, _ = library_of(self._device, code[_LENGTH:end].decode())
            if archive is None or library is None:
                return None
            return self._pipeline(self._descriptor(library, [archive]), _ARCHIVED_ONLY)[0]

    def build(self, source: str) -> tuple[Any, bytes | None]:
        """The pipeline of a source, and the source with its machine code, if Metal gives it out."""
        with pool(), TemporaryDirectory() as folder:
            made, error = library_of(self._device, source)
            code = None
            if made is not None:
                archive, path = self._archive(None), Path(folder) / "archive"
                descriptor = self._descriptor(made, [])
                if (
                    archive is not None
                    and archive.addComputePipelineFunctionsWithDescriptor_error_(descriptor, None)[0]
                ):
                    descriptor.setBinaryArchives_([archive])
                    if archive.serializeToURL_error_(foundation().NSURL.fileURLWithPath_(str(path)), None)[0]:
                        text = source.encode()
                        code = len(text).to_bytes(_LENGTH, "little") + text + path.read_bytes()
                made, error = self._pipeline(descriptor, 0)
            if made is None:
                raise CompileFailure(f"{error.localizedDescription()}\n{source}")
            return made, code

    def _archive(self, path: Path | None) -> Any | None:
        """An archive from a file, or a new one; `None` if Metal makes none."""
        descriptor = metal()[0].MTLBinaryArchiveDescriptor.alloc().init()
        if path is not None:
            descriptor.setUrl_(foundation().NSURL.fileURLWithPath_(str(path)))
        made: Any | None = self._device.newBinaryArchiveWithDescriptor_error_(descriptor, None)[0]
        return made

    def _descriptor(self, library: Any, archives: list[Any]) -> Any:
        descriptor = metal()[0].MTLComputePipelineDescriptor.alloc().init()
        descriptor.setComputeFunction_(library.newFunctionWithName_(NAME))
        descriptor.setSupportIndirectCommandBuffers_(True)
        descriptor.setBinaryArchives_(archives)
        return descriptor

    def _pipeline(self, descriptor: Any, options: int) -> tuple[Any | None, Any]:
        """A pipeline, or `None`, and the error. The reflection between them is there in some versions of pyobjc."""
        made, *_, error = self._device.newComputePipelineStateWithDescriptor_options_reflection_error_(
            descriptor, options, None, None
        )
        return made, error
