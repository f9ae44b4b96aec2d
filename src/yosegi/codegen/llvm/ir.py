"""LLVM IR as text: functions of single assignments, with structured loops.

Texts of values carry no type: whoever uses one knows it. Loop-carried values are phis from the start, because what is
written here is compiled without LLVM's optimisation passes: the code is vector code already, and passes cost more
time than they give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Module:
    """The functions of one compiled object, and what they use from outside."""

    functions: list[Function] = field(default_factory=list)
    declarations: set[str] = field(default_factory=set)
    globals: list[str] = field(default_factory=list)

    def function(self, name: str, parameters: Sequence[tuple[str, str]], returns: str = "void") -> Function:
        """A new function: its parameters are (type, name) pairs, the names without `%`."""
        made = Function(self, name, parameters, returns)
        self.functions.append(made)
        return made

    def text(self, attributes: str) -> str:
        """The module; `attributes` are those of every function."""
        defined = [f.text() for f in self.functions]
        return "\n".join([*self.globals, *defined, *sorted(self.declarations), f"attributes #0 = {{ {attributes} }}", ""])


@dataclass(slots=True)
class Loop:
    """A loop under way: its index, and the values that go from one turn to the next."""

    index: str
    values: tuple[str, ...]
    """Inside, what came from the turn before; after the loop, what came out of it."""
    following: tuple[str, ...] = ()

    def carry(self, *values: str) -> None:
        """What the next turn gets: one value for each of `values`."""
        assert len(values) == len(self.values)
        self.following = values


class Function:
    """One function being written."""

    def __init__(self, module: Module, name: str, parameters: Sequence[tuple[str, str]], returns: str) -> None:
        self.module = module
        self.name = name
        signature = ", ".join(f"{t} %{n}" for t, n in parameters)
        self.lines = [f"define {returns} @{name}({signature}) #0 {{", "entry:"]
        self.block = "entry"
        """The label of the block that is being written."""
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

    def do(self, instruction: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {instruction}")

    def call(self, returns: str, name: str, types: Sequence[str], values: Sequence[str], flags: str = "") -> str:
        """Call a function from outside, intrinsics included; its result, or nothing for `void`."""
        self.module.declarations.add(f"declare {returns} @{name}({', '.join(types)})")
        arguments = ", ".join(f"{t} {v}" for t, v in zip(types, values, strict=True))
        text = f"call {flags}{' ' if flags else ''}{returns} @{name}({arguments})"
        if returns == "void":
            self.do(text)
            return ""
        return self.let(text)

    def begin(self, label: str) -> None:
        """Go on in a new block."""
        self.lines.append(f"{label}:")
        self.block = label

    @contextmanager
    def loop(
        self, start: str | int, end: str | int, step: str | int = 1, carried: Sequence[tuple[str, str]] = ()
    ) -> Iterator[Loop]:
        """Count an i64 from `start` to before `end`; `carried` are the (type, first value) pairs that go along."""
        head, body, last, after = (self.fresh(stem) for stem in ("head", "body", "last", "after"))
        before = self.block
        self.do(f"br label %{head}")
        self.begin(head)
        index, following = f"%{self.fresh('i')}", f"%{self.fresh('i')}"
        values = tuple(f"%{self.fresh('c')}" for _ in carried)
        phis = len(self.lines)
        done = f"%{self.fresh()}"
        self.do(f"{done} = icmp sge i64 {index}, {end}")
        self.do(f"br i1 {done}, label %{after}, label %{body}")
        self.begin(body)
        under_way = Loop(index, values)
        yield under_way
        assert len(under_way.following) == len(values)
        self.do(f"br label %{last}")
        self.begin(last)
        self.do(f"{following} = add nsw i64 {index}, {step}")
        self.do(f"br label %{head}")
        self.begin(after)
        made = [f"  {index} = phi i64 [ {start}, %{before} ], [ {following}, %{last} ]"]
        for (kind, first), value, new in zip(carried, values, under_way.following, strict=True):
            made.append(f"  {value} = phi {kind} [ {first}, %{before} ], [ {new}, %{last} ]")
        self.lines[phis:phis] = made

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Code that runs if an i1 holds. Nothing computed there is known outside."""
        inside, after = self.fresh("then"), self.fresh("after")
        self.do(f"br i1 {condition}, label %{inside}, label %{after}")
        self.begin(inside)
        yield
        self.do(f"br label %{after}")
        self.begin(after)

    def ret(self, value: str = "void") -> None:
        """Return."""
        self.do(f"ret {value}")

    def text(self) -> str:
        """The function."""
        return "\n".join([*self.lines, "}"])
