"""LLVM IR as text: functions of single assignments, with structured loops.

Texts of values carry no type: the code that uses one knows it. Loop-carried values are phis from the start, because
this IR is compiled without LLVM's optimisation passes: the code is vector code already, and passes cost more time
than they save.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import Structure
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Module:
    """The functions of one compiled object, and what they use from outside."""

    functions: list[Function] = field(default_factory=list)
    declarations: set[str] = field(default_factory=set)
    globals: list[str] = field(default_factory=list)
    converts_halves: bool = True
    """Whether the target has instructions between float16 and float; else its bits are taken apart."""
    tables: dict[str, str] = field(default_factory=dict)
    """Constants that functions look up, by name."""
    _metadata: dict[str, str] = field(default_factory=dict)

    def function(self, name: str, parameters: Sequence[tuple[str, str]], returns: str = "void") -> Function:
        """A new function: its parameters are (type, name) pairs, the names without `%`."""
        made = Function(self, name, parameters, returns)
        self.functions.append(made)
        return made

    def table(self, name: str, element: str, texts: Sequence[str]) -> None:
        """Constants that functions can look up under `@name`."""
        items = ", ".join(f"{element} {t}" for t in texts)
        self.tables[name] = f"@{name} = internal unnamed_addr constant [{len(texts)} x {element}] [{items}], align 64"

    def metadata(self, node: str) -> str:
        """The name of a node of metadata: `!nontemporal {module.metadata("!{i32 1}")}`."""
        return self._metadata.setdefault(node, f"!{len(self._metadata)}")

    def text(self, attributes: str) -> str:
        """The module; `attributes` are those of every function."""
        lines = [*self.globals, *self.tables.values(), *[f.text() for f in self.functions], *sorted(self.declarations)]
        lines.append(f"attributes #0 = {{ {attributes} }}")
        lines += [f"{name} = {node}" for node, name in self._metadata.items()]
        return "\n".join([*lines, ""])


@dataclass(slots=True)
class Loop:
    """A loop under way: its index, and the values that go from one turn to the next."""

    index: str
    values: tuple[str, ...]
    """Inside, what came from the turn before; after the loop, what came out of it."""
    following: tuple[str, ...] = ()

    def carry(self, *values: str) -> None:
        """The values of the next iteration: one for each of `values`."""
        assert len(values) == len(self.values)
        self.following = values


@dataclass(slots=True)
class Branch:
    """Code under a condition: the values that come out of it."""

    values: tuple[str, ...]
    """Afterwards: what was given, or what holds otherwise."""
    given: tuple[str, ...] = ()

    def give(self, *values: str) -> None:
        """The results if the condition holds: one for each of `values`."""
        assert len(values) == len(self.values)
        self.given = values


class Function:
    """One function being written."""

    def __init__(self, module: Module, name: str, parameters: Sequence[tuple[str, str]], returns: str) -> None:
        self.module = module
        self.name = name
        signature = ", ".join(f"{t} %{n}" for t, n in parameters)
        self._head = f"define {returns} @{name}({signature}) #0 {{"
        self._slots: list[str] = []
        self.lines: list[str] = []
        self.block = "entry"
        """The label of the block that is being written."""
        self.known: dict[Any, Any] = {}
        """The values that can be reused: `pure` instructions, and others that a writer remembers."""
        self._count = 0

    def fresh(self, stem: str = "v") -> str:
        """A name that this function has not used, without `%`."""
        self._count += 1
        return f"{stem}{self._count}"

    def let(self, instruction: str) -> str:
        """The result of an instruction."""
        name = f"%{self.fresh()}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def pure(self, instruction: str) -> str:
        """The result of an instruction that depends on its operands alone; written once, however often asked for."""
        name: str | None = self.known.get(instruction)
        if name is None:
            name = self.known[instruction] = self.let(instruction)
        return name

    def slot(self, kind: str) -> str:
        """The address of memory for one value of a type, the same for the whole of a call."""
        name = f"%{self.fresh()}"
        self._slots.append(f"  {name} = alloca {kind}")
        return name

    def do(self, instruction: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {instruction}")

    def call(self, returns: str, name: str, types: Sequence[str], values: Sequence[str], flags: str = "") -> str:
        """Call a function from outside, intrinsics included; its result, or nothing for `void`."""
        text = self._called(returns, name, types, values, flags)
        if returns == "void":
            self.do(text)
            return ""
        return self.let(text)

    def invoke(self, function: str, parameters: Sequence[tuple[str, str]], *values: str) -> None:
        """Call a function without a result by its name or address; `parameters` are (type, name) pairs."""
        given = ", ".join(f"{kind} {value}" for (kind, _), value in zip(parameters, values, strict=True))
        self.do(f"call void {function}({given})")

    def pure_call(self, returns: str, name: str, types: Sequence[str], values: Sequence[str]) -> str:
        """A call of a function whose result depends on its arguments alone."""
        return self.pure(self._called(returns, name, types, values, ""))

    def _called(self, returns: str, name: str, types: Sequence[str], values: Sequence[str], flags: str) -> str:
        self.module.declarations.add(f"declare {returns} @{name}({', '.join(types)})")
        arguments = ", ".join(f"{t} {v}" for t, v in zip(types, values, strict=True))
        return f"call {flags}{' ' if flags else ''}{returns} @{name}({arguments})"

    def begin(self, label: str) -> None:
        """Go on in a new block, of which nothing is known."""
        self.known = {}
        self._begin(label)

    def _begin(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """A scope: values that are computed inside are not reused outside."""
        outside = self.known
        self.known = dict(outside)
        yield
        self.known = outside

    @contextmanager
    def loop(
        self, start: str | int, end: str | int, step: str | int = 1, carried: Sequence[tuple[str, str]] = ()
    ) -> Iterator[Loop]:
        """Count an i64 from `start` to before `end`; `carried` are the (type, first value) pairs that go along."""
        head, body, last, after = (self.fresh(stem) for stem in ("head", "body", "last", "after"))
        before = self.block
        self.do(f"br label %{head}")
        self._begin(head)
        index, following = f"%{self.fresh('i')}", f"%{self.fresh('i')}"
        values = tuple(f"%{self.fresh('c')}" for _ in carried)
        phis = len(self.lines)
        done = f"%{self.fresh()}"
        self.do(f"{done} = icmp sge i64 {index}, {end}")
        self.do(f"br i1 {done}, label %{after}, label %{body}")
        self._begin(body)
        under_way = Loop(index, values)
        with self._inside():
            yield under_way
        assert len(under_way.following) == len(values)
        self.do(f"br label %{last}")
        self._begin(last)
        self.do(f"{following} = add nsw i64 {index}, {step}")
        self.do(f"br label %{head}")
        self._begin(after)
        made = [f"  {index} = phi i64 [ {start}, %{before} ], [ {following}, %{last} ]"]
        for (kind, first), value, new in zip(carried, values, under_way.following, strict=True):
            made.append(f"  {value} = phi {kind} [ {first}, %{before} ], [ {new}, %{last} ]")
        self.lines[phis:phis] = made

    @contextmanager
    def when(self, condition: str, otherwise: Sequence[tuple[str, str]] = ()) -> Iterator[Branch]:
        """Code that runs if an i1 holds. What comes out is what it gives, or `otherwise`, (type, value) pairs."""
        inside, after = self.fresh("then"), self.fresh("after")
        before = self.block
        self.do(f"br i1 {condition}, label %{inside}, label %{after}")
        self._begin(inside)
        branch = Branch(tuple(f"%{self.fresh('c')}" for _ in otherwise))
        with self._inside():
            yield branch
        assert len(branch.given) == len(otherwise)
        last = self.block
        self.do(f"br label %{after}")
        self._begin(after)
        for name, (kind, value), given in zip(branch.values, otherwise, branch.given, strict=True):
            self.do(f"{name} = phi {kind} [ {value}, %{before} ], [ {given}, %{last} ]")

    def ret(self, value: str = "void") -> None:
        """Return."""
        self.do(f"ret {value}")

    def text(self) -> str:
        """The function."""
        return "\n".join([self._head, "entry:", *self._slots, *self.lines, "}"])


def with_fields(text: str, word: str, structure: type[Structure], base: str) -> str:
    """IR text with the fields of a structure at `base`: `%x = word name` is the address of one, `%x = i64 word name`
    its value."""

    def address(name: str) -> str:
        return f"getelementptr i8, ptr {base}, i64 {getattr(structure, name).offset}"

    text = re.sub(
        rf"%([\w.]+) = (\w+) {word}[ .](\w+)",
        lambda m: f"%p.{m[1]} = {address(m[3])}\n  %{m[1]} = load {m[2]}, ptr %p.{m[1]}",
        text,
    )
    return re.sub(rf"\b{word}[ .](\w+)", lambda m: address(m[1]), text)
