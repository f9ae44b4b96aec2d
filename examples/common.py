"""The parts that the training examples share: options of the command line, the jitted step, and the loop around it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import yosegi as ys

console = Console()


def arguments(description: str, steps: int, parallel: Sequence[str] = ()) -> argparse.Namespace:
    """The options of the command line; with names of ways to train on several ranks, `--parallel`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=steps, help="steps of the whole run (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help="a name of `yosegi devices`")
    parser.add_argument("--precision", default="f32", choices=["f32", "f16", "adaptive"])
    parser.add_argument(
        "--out", type=Path, default=Path("runs") / Path(description.split(":")[0]), help="(%(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    parser.add_argument("--explain", action="store_true", help="print where the step ran")
    parser.add_argument("--events", action="store_true", help="write event files for TensorBoard into --out")
    if parallel:
        parser.add_argument("--parallel", choices=parallel, help="share the work among the ranks of `yosegi launch`")
    return parser.parse_args()


def options(args: argparse.Namespace) -> Any:
    """The options of evaluation: the same seed gives the same bits."""
    return ys.options(device=args.device, precision=args.precision, deterministic=True)


def optimizer_of(model: ys.nn.Module, args: argparse.Namespace, lr: float) -> ys.optim.Optimizer:
    """AdamW with warm-up, cosine decay and clipping; under "f16" it scales the loss."""
    rate = ys.optim.warmup(ys.optim.cosine_decay(lr, args.steps), args.steps // 20 + 1)
    adamw = ys.optim.adamw(rate, weight_decay=0.05, mask=lambda path, p: p.ndim > 1)
    return ys.optim.Chain(model, ys.optim.clip_by_norm(1.0), adamw)


def step_of(loss: Callable[..., ys.Tensor]) -> Any:
    """Forward, backward and update as one jitted function."""

    @ys.jit
    def step(optimizer, *batch):
        (value, model), grads = optimizer.value_and_grad(loss, has_state=True)(*batch)
        return optimizer.step(grads, params=model), value

    return step


def train(args: argparse.Namespace, optimizer: Any, loader: ys.training.Loader, step: Any) -> Any:
    """Run the steps with a progress bar, checkpoints and a picture of the loss. Returns the optimiser and the loss."""
    checkpoints = ys.training.Checkpoints(args.out / "checkpoints")
    found = checkpoints.restore({"optimizer": optimizer, "loader": loader}) if args.resume else None
    done, state = found or (0, {"optimizer": optimizer, "loader": loader})
    optimizer, losses = state["optimizer"], []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ExitStack() as stack:
        bar = stack.enter_context(Progress(*columns, console=console))
        events = stack.enter_context(ys.training.EventWriter(args.out)) if args.events else None
        task = bar.add_task("loss", total=args.steps, completed=done)
        while done < args.steps:
            for batch in loader:
                optimizer, value = step(optimizer, *batch)
                done += 1
                losses.append((done, float(value)))
                bar.update(task, completed=done, description=f"loss {losses[-1][1]:.3f}")
                if events:
                    events.scalar("loss", losses[-1][1], done)
                if done % 100 == 0 or done == args.steps:
                    checkpoints.save(done, {"optimizer": optimizer, "loader": loader})
                if done == args.steps:
                    break
    if losses:
        recent = [value for _, value in losses[-20:]]
        console.print(f"loss {sum(recent) / len(recent):.4f} over the last {len(recent)} steps, {len(step.plans)} plan")
        ys.training.save_curve(args.out / "loss.svg", {"loss": losses}, title="training loss")
        console.print(f"curve in {args.out / 'loss.svg'}, checkpoints in {args.out / 'checkpoints'}")
    if args.explain and step.plans:
        console.print(str(step.plans[0].explain()), highlight=False)
    return optimizer
