"""Arithmetic on sizes and addresses: i64 texts, with the little folding that keeps what is written short."""

from __future__ import annotations

from .ir import Function


def add(code: Function, a: str, b: str) -> str:
    """a + b."""
    return b if a == "0" else a if b == "0" else code.pure(f"add i64 {a}, {b}")


def sub(code: Function, a: str, b: str) -> str:
    """a - b."""
    return a if b == "0" else code.pure(f"sub i64 {a}, {b}")


def mul(code: Function, a: str, b: str | int) -> str:
    """a * b."""
    b = str(b)
    if "0" in (a, b):
        return "0"
    return b if a == "1" else a if b == "1" else code.pure(f"mul i64 {a}, {b}")


def div(code: Function, a: str, b: str | int) -> str:
    """a / b, rounded down; neither is negative."""
    return a if str(b) == "1" else code.pure(f"udiv i64 {a}, {b}")


def ceil_div(code: Function, a: str, b: str | int) -> str:
    """a / b, rounded up; neither is negative."""
    return a if str(b) == "1" else div(code, add(code, a, sub(code, str(b), "1")), b)


def least(code: Function, a: str, b: str | int) -> str:
    """The smaller of two."""
    return code.pure_call("i64", "llvm.smin.i64", ["i64", "i64"], [a, str(b)])


def most(code: Function, a: str, b: str | int) -> str:
    """The larger of two."""
    return code.pure_call("i64", "llvm.smax.i64", ["i64", "i64"], [a, str(b)])


def split(code: Function, index: str, size: str) -> tuple[str, str]:
    """An index as (row, place), with rows of this size."""
    if size == "1":
        return index, "0"
    row = div(code, index, size)
    return row, sub(code, index, mul(code, row, size))


def choice(code: Function, condition: str, a: str, b: str, kind: str = "i64") -> str:
    """a if an i1 holds, else b."""
    return code.pure(f"select i1 {condition}, {kind} {a}, {kind} {b}")


def shifted(code: Function, base: str, offset: str) -> str:
    """An address some bytes on."""
    return base if offset == "0" else code.pure(f"getelementptr i8, ptr {base}, i64 {offset}")


def lined_up(code: Function, address: str, size: int) -> str:
    """The first multiple of a power of two from an address on; the address is an i64."""
    up = code.let(f"and i64 {add(code, address, str(size - 1))}, {-size}")
    return code.let(f"inttoptr i64 {up} to ptr")


def word(code: Function, base: str, number: int, kind: str = "i64") -> str:
    """A word of an array of them, to be asked for where all who need it can see it."""
    return code.let(f"load {kind}, ptr {code.pure(f'getelementptr i64, ptr {base}, i64 {number}')}")


class Multiples:
    """The first multiples of a number, as parts of addresses.

    The odd ones are computed once, and hidden from LLVM, which would make each address from the one before: such a
    chain of sums takes longer than a tile's products. The others are written where they are used, because processors
    shift while they add.
    """

    def __init__(self, code: Function, number: str, count: int) -> None:
        self._code = code
        self._odd = {n: code.let(f'call i64 asm "", "=r,0"(i64 {mul(code, number, n)})') for n in range(1, count, 2)}

    def __getitem__(self, n: int) -> str:
        if n == 0:
            return "0"
        twos = (n & -n).bit_length() - 1
        return self._odd[n >> twos] if not twos else self._code.pure(f"shl i64 {self._odd[n >> twos]}, {twos}")
