"""The main job, small: list the devices, evaluate a program, say what ran where."""

from rich.console import Console

import yosegi as ys
from yosegi.tools.cli import main

console = Console()
main(["devices"])

rng = ys.random.default_rng(0)
x, w, b = rng.normal((256, 64)), rng.normal((64, 32), std=0.1), ys.zeros((32,))
ys.eval(x, w, b)


def loss(w, b):
    hidden = ys.tanh(x @ w + b)
    return ys.mean((hidden - 0.5) ** 2)


step = ys.jit(ys.value_and_grad(loss, argnums=(0, 1)))

console.rule("what will run where")
console.print(str(ys.explain(loss(w, b))), highlight=False)

console.rule("gradient descent through jit")
for i in range(31):
    value, (gw, gb) = step(w, b)
    w, b = w - 10.0 * gw, b - 10.0 * gb
    if i % 10 == 0:
        console.print(f"step {i:2d}  loss {value:.4f}")
