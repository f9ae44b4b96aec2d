"""The matrix units of other processors, in plain LLVM IR: how their kernels are tested on any x86-64 with AVX-512.

`emulated` puts functions of the same meaning in the place of a module's calls to the instructions. They follow Intel's
manual: numbers below the smallest normal one are zero, going in and coming out, and every sum is rounded to the nearest
number, in the manual's order. Each thread has tiles of its own, of the size that it has configured; without that, a
tile has no rows, and nothing is ever stored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from yosegi.devices.cpu.compiler import Code, Compiler, Part

_NAMES = {
    "llvm.x86.ldtilecfg": "emulated_ldtilecfg",
    "llvm.x86.tilerelease": "emulated_tilerelease",
    "llvm.x86.tilezero": "emulated_tilezero",
    "llvm.x86.tileloadd64": "emulated_tileloadd64",
    "llvm.x86.tilestored64": "emulated_tilestored64",
    "llvm.x86.tdpbf16ps": "emulated_tdpbf16ps",
    "llvm.x86.avx512bf16.dpbf16ps.512": "emulated_dpbf16ps",
    "llvm.x86.avx512bf16.cvtne2ps2bf16.512": "emulated_cvtne2ps2bf16",
}


def emulated(source: str) -> str:
    """The module with functions in the place of the instructions that this processor may not have."""
    for name, function in _NAMES.items():
        source = re.sub(rf"^declare .*@{re.escape(name)}\(.*\n", "", source, flags=re.MULTILINE)
        source = source.replace(f"@{name}(", f"@{function}(")
    declared = {line for line in _FUNCTIONS.splitlines() if line.startswith("declare") and line not in source}
    functions = "\n".join(line for line in _FUNCTIONS.splitlines() if not line.startswith("declare"))
    return "\n".join([source, functions, *sorted(declared), ""])


class EmulatingCompiler:
    """A compiler for this processor that takes modules for another."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self.machine = compiler.machine

    def load(self, source: str, functions: Sequence[str]) -> Code:
        """The code of a module, emulated."""
        return self.load_all([Part(source, lambda: source, tuple(functions))])[0]

    def load_all(self, parts: Sequence[Part]) -> list[Code]:
        """The same for modules that are told by words."""
        return self._compiler.load_all(
            [Part(f"{_FUNCTIONS}\n{p.words}", lambda p=p: emulated(p.write()), p.functions) for p in parts]  # type: ignore[misc]
        )


_THREADS = 1024
_TILES = 64 + 8 * 1024
"""Bytes of a thread's tiles: their configuration, then 8 tiles."""
_memory = np.zeros(64 + _THREADS * (8 + _TILES), np.uint8)
"""The tiles of all threads, and before them whose they are. All modules of this process share them."""
_OWNERS = (_memory.ctypes.data + 63) // 64 * 64
_FUNCTIONS = """

define internal ptr @mine() #0 {
entry:
  %me = call i64 @pthread_self()
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %p = getelementptr i64, ptr inttoptr (i64 OWNERS to ptr), i64 %i
  %taken = cmpxchg ptr %p, i64 0, i64 %me seq_cst seq_cst
  %owner = extractvalue { i64, i1 } %taken, 0
  %new = extractvalue { i64, i1 } %taken, 1
  %same = icmp eq i64 %owner, %me
  %found = or i1 %new, %same
  br i1 %found, label %done, label %next
next:
  %i1 = add i64 %i, 1
  %full = icmp eq i64 %i1, THREADS
  br i1 %full, label %crowd, label %look
crowd:
  call void @llvm.trap()
  unreachable
done:
  %own = getelementptr [8256 x i8], ptr inttoptr (i64 TILES to ptr), i64 %i
  ret ptr %own
}

define internal i64 @rows_of(ptr %own, i8 %t) #0 {
  %w = zext i8 %t to i64
  %at = add i64 %w, 48
  %p = getelementptr i8, ptr %own, i64 %at
  %rows = load i8, ptr %p
  %r = zext i8 %rows to i64
  ret i64 %r
}

define internal i64 @words_of(ptr %own, i8 %t) #0 {
  %w = zext i8 %t to i64
  %twice = mul i64 %w, 2
  %at = add i64 %twice, 16
  %p = getelementptr i8, ptr %own, i64 %at
  %bytes = load i16, ptr %p
  %b = zext i16 %bytes to i64
  %words = lshr i64 %b, 2
  ret i64 %words
}

define internal ptr @tile_of(ptr %own, i8 %t) #0 {
  %w = zext i8 %t to i64
  %size = mul i64 %w, 1024
  %at = add i64 %size, 64
  %p = getelementptr i8, ptr %own, i64 %at
  ret ptr %p
}

define internal void @emulated_ldtilecfg(ptr %shapes) #0 {
  %own = call ptr @mine()
  call void @llvm.memset.p0.i64(ptr %own, i8 0, i64 8256, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %own, ptr %shapes, i64 64, i1 false)
  ret void
}

define internal void @emulated_tilerelease() #0 {
  %own = call ptr @mine()
  call void @llvm.memset.p0.i64(ptr %own, i8 0, i64 8256, i1 false)
  ret void
}

define internal void @emulated_tilezero(i8 %t) #0 {
  %own = call ptr @mine()
  %tile = call ptr @tile_of(ptr %own, i8 %t)
  call void @llvm.memset.p0.i64(ptr %tile, i8 0, i64 1024, i1 false)
  ret void
}

define internal void @emulated_tileloadd64(i8 %t, ptr %from, i64 %apart) #0 {
entry:
  %own = call ptr @mine()
  %rows = call i64 @rows_of(ptr %own, i8 %t)
  %words = call i64 @words_of(ptr %own, i8 %t)
  %bytes = mul i64 %words, 4
  %tile = call ptr @tile_of(ptr %own, i8 %t)
  call void @llvm.memset.p0.i64(ptr %tile, i8 0, i64 1024, i1 false)
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %row ]
  %left = icmp slt i64 %i, %rows
  br i1 %left, label %row, label %done
row:
  %here = mul i64 %i, %apart
  %there = mul i64 %i, 64
  %p = getelementptr i8, ptr %from, i64 %here
  %q = getelementptr i8, ptr %tile, i64 %there
  call void @llvm.memcpy.p0.p0.i64(ptr %q, ptr %p, i64 %bytes, i1 false)
  %i1 = add i64 %i, 1
  br label %next
done:
  ret void
}

define internal void @emulated_tilestored64(i8 %t, ptr %to, i64 %apart) #0 {
entry:
  %own = call ptr @mine()
  %rows = call i64 @rows_of(ptr %own, i8 %t)
  %words = call i64 @words_of(ptr %own, i8 %t)
  %bytes = mul i64 %words, 4
  %tile = call ptr @tile_of(ptr %own, i8 %t)
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %row ]
  %left = icmp slt i64 %i, %rows
  br i1 %left, label %row, label %done
row:
  %there = mul i64 %i, %apart
  %here = mul i64 %i, 64
  %p = getelementptr i8, ptr %tile, i64 %here
  %q = getelementptr i8, ptr %to, i64 %there
  call void @llvm.memcpy.p0.p0.i64(ptr %q, ptr %p, i64 %bytes, i1 false)
  %i1 = add i64 %i, 1
  br label %next
done:
  ret void
}

; numbers below the smallest normal one as zeros of their sign
define internal <16 x float> @flushed(<16 x float> %x) #0 {
  %bits = bitcast <16 x float> %x to <16 x i32>
  %exponent = and <16 x i32> %bits, splat (i32 2139095040)
  %small = icmp eq <16 x i32> %exponent, zeroinitializer
  %sign = and <16 x i32> %bits, splat (i32 -2147483648)
  %kept = select <16 x i1> %small, <16 x i32> %sign, <16 x i32> %bits
  %y = bitcast <16 x i32> %kept to <16 x float>
  ret <16 x float> %y
}

; sums + the products of the pairs' upper (1) or lower (0) numbers
define internal <16 x float> @multiplied(<16 x float> %sums, <16 x i32> %a, <16 x i32> %b, i1 %upper) #0 {
  %a.high = and <16 x i32> %a, splat (i32 -65536)
  %a.low = shl <16 x i32> %a, splat (i32 16)
  %b.high = and <16 x i32> %b, splat (i32 -65536)
  %b.low = shl <16 x i32> %b, splat (i32 16)
  %a.bits = select i1 %upper, <16 x i32> %a.high, <16 x i32> %a.low
  %b.bits = select i1 %upper, <16 x i32> %b.high, <16 x i32> %b.low
  %a.float = bitcast <16 x i32> %a.bits to <16 x float>
  %b.float = bitcast <16 x i32> %b.bits to <16 x float>
  %x = call <16 x float> @flushed(<16 x float> %a.float)
  %y = call <16 x float> @flushed(<16 x float> %b.float)
  %z = call <16 x float> @flushed(<16 x float> %sums)
  %made = call <16 x float> @llvm.fma.v16f32(<16 x float> %x, <16 x float> %y, <16 x float> %z)
  %result = call <16 x float> @flushed(<16 x float> %made)
  ret <16 x float> %result
}

define internal void @emulated_tdpbf16ps(i8 %c, i8 %a, i8 %b) #0 {
entry:
  %own = call ptr @mine()
  %rows = call i64 @rows_of(ptr %own, i8 %c)
  %columns = call i64 @words_of(ptr %own, i8 %c)
  %length = call i64 @words_of(ptr %own, i8 %a)
  %p.a = call ptr @tile_of(ptr %own, i8 %a)
  %p.b = call ptr @tile_of(ptr %own, i8 %b)
  %p.c = call ptr @tile_of(ptr %own, i8 %c)
  %mask = call <16 x i1> @llvm.get.active.lane.mask.v16i1.i64(i64 0, i64 %columns)
  br label %next.row
next.row:
  %m = phi i64 [ 0, %entry ], [ %m1, %end.row ]
  %more = icmp slt i64 %m, %rows
  br i1 %more, label %row, label %done
row:
  %line = mul i64 %m, 64
  %a.row = getelementptr i8, ptr %p.a, i64 %line
  br label %next.pair
next.pair:
  %k = phi i64 [ 0, %row ], [ %k1, %pair ]
  %even = phi <16 x float> [ zeroinitializer, %row ], [ %even1, %pair ]
  %odd = phi <16 x float> [ zeroinitializer, %row ], [ %odd1, %pair ]
  %inside = icmp slt i64 %k, %length
  br i1 %inside, label %pair, label %end.row
pair:
  %at = getelementptr i32, ptr %a.row, i64 %k
  %word = load i32, ptr %at
  %first = insertelement <16 x i32> poison, i32 %word, i64 0
  %x = shufflevector <16 x i32> %first, <16 x i32> poison, <16 x i32> zeroinitializer
  %b.line = mul i64 %k, 64
  %b.at = getelementptr i8, ptr %p.b, i64 %b.line
  %y = load <16 x i32>, ptr %b.at, align 64
  %even1 = call <16 x float> @multiplied(<16 x float> %even, <16 x i32> %x, <16 x i32> %y, i1 false)
  %odd1 = call <16 x float> @multiplied(<16 x float> %odd, <16 x i32> %x, <16 x i32> %y, i1 true)
  %k1 = add i64 %k, 1
  br label %next.pair
end.row:
  %both = fadd <16 x float> %even, %odd
  %both.flushed = call <16 x float> @flushed(<16 x float> %both)
  %c.row = getelementptr i8, ptr %p.c, i64 %line
  %before = load <16 x float>, ptr %c.row, align 64
  %before.flushed = call <16 x float> @flushed(<16 x float> %before)
  %sum = fadd <16 x float> %before.flushed, %both.flushed
  %sum.flushed = call <16 x float> @flushed(<16 x float> %sum)
  %kept = select <16 x i1> %mask, <16 x float> %sum.flushed, <16 x float> zeroinitializer
  store <16 x float> %kept, ptr %c.row, align 64
  %m1 = add i64 %m, 1
  br label %next.row
done:
  ret void
}

define internal <16 x float> @emulated_dpbf16ps(<16 x float> %sums, <32 x bfloat> %a, <32 x bfloat> %b) #0 {
  %x = bitcast <32 x bfloat> %a to <16 x i32>
  %y = bitcast <32 x bfloat> %b to <16 x i32>
  %odd = call <16 x float> @multiplied(<16 x float> %sums, <16 x i32> %x, <16 x i32> %y, i1 true)
  %both = call <16 x float> @multiplied(<16 x float> %odd, <16 x i32> %x, <16 x i32> %y, i1 false)
  ret <16 x float> %both
}

define internal <16 x i16> @rounded(<16 x float> %given) #0 {
  %x = call <16 x float> @flushed(<16 x float> %given)
  %bits = bitcast <16 x float> %x to <16 x i32>
  %shifted = lshr <16 x i32> %bits, splat (i32 16)
  %last = and <16 x i32> %shifted, splat (i32 1)
  %bias = add <16 x i32> %last, splat (i32 32767)
  %up = add <16 x i32> %bits, %bias
  %near = lshr <16 x i32> %up, splat (i32 16)
  %quiet = or <16 x i32> %shifted, splat (i32 64)
  %number = fcmp ord <16 x float> %x, %x
  %kept = select <16 x i1> %number, <16 x i32> %near, <16 x i32> %quiet
  %made = trunc <16 x i32> %kept to <16 x i16>
  ret <16 x i16> %made
}

; the numbers of the second operand come first
define internal <32 x bfloat> @emulated_cvtne2ps2bf16(<16 x float> %upper, <16 x float> %lower) #0 {
  %u = call <16 x i16> @rounded(<16 x float> %upper)
  %l = call <16 x i16> @rounded(<16 x float> %lower)
  %both = shufflevector <16 x i16> %l, <16 x i16> %u, <32 x i32> <ORDER>
  %made = bitcast <32 x i16> %both to <32 x bfloat>
  ret <32 x bfloat> %made
}

declare i64 @pthread_self()
declare void @llvm.trap()
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x i1> @llvm.get.active.lane.mask.v16i1.i64(i64, i64)
""".replace("ORDER", ", ".join(f"i32 {n}" for n in range(32)))
_FUNCTIONS = _FUNCTIONS.replace("OWNERS", str(_OWNERS)).replace("TILES", str(_OWNERS + 8 * _THREADS))
_FUNCTIONS = _FUNCTIONS.replace("THREADS", str(_THREADS))
