"""What compiling costs: machine instructions, because seconds depend on who else uses the machine.

LLVM takes some 30 microseconds for each, whatever it is, and 4 ms for a module. `make compile-cost` measures seconds.
"""

from __future__ import annotations

import pytest

import llvm_code
from compile_cost import LOOPS, sources
from native_code import needs_llvm
from yosegi.devices.cpu.compiler import HostMachine

TRIPLE = "x86_64-unknown-linux-gnu"
WIDE = HostMachine(TRIPLE, "x86-64-v4", "", "")
MOST = 600
"""Instructions of a loop that compiles in 20 ms."""
BOUNDS = {
    "pow": 770,
    "pow, float64": 790,
    "four functions": 930,
    "four functions, float64": 1170,
    "exp, complex64": 840,
}
"""Of the loops with the longest functions: a tenth more than they have, and 35 ms at most."""

pytestmark = needs_llvm


def _instructions(case: str) -> list[int]:
    """Of each of a loop's kernels."""
    compiler = llvm_code.machine(WIDE.model, TRIPLE)
    made = [str(compiler.emit_assembly(llvm_code.llvm.parse_assembly(s))) for s in sources(case, WIDE.target)]
    return [sum(line.startswith("\t") and not line.startswith("\t.") for line in m.splitlines()) for m in made]


@pytest.mark.parametrize("case", LOOPS)
def test_a_loop_is_one_kernel_of_few_instructions(case: str) -> None:
    (count,) = _instructions(case)
    assert count <= BOUNDS.get(case, MOST)
