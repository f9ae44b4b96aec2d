"""Random programs on "coreml:0+metal:0" over the doubles of Apple's frameworks, which fail at random.

    python tests/apple_programs.py [--programs 300] [--seed 0] [--faults 0.05]

Every result must equal the host's, and no exception may escape.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter

import apple_doubles
import chaos
import yosegi as ys
from yosegi._run.trace import trace
from yosegi.extend import installed


def check(seed: int, faults: float) -> Counter[str]:
    """One program on the host and on both devices. Counts the devices of its steps and the failures."""
    with ys.options(device="cpu"):
        expected = [t.numpy() for t in chaos.build(seed)]
    rng = random.Random(seed)
    doubles = apple_doubles.metal_double(), apple_doubles.core_ml_double()
    for double in doubles:
        double.failing = lambda what: "an injected fault" if rng.random() < faults else None
    trace.clear()
    try:
        with (
            installed(apple_doubles.core_ml_device(), apple_doubles.metal_device()) as chain,
            ys.options(device=chain, on_fallback="silent", background=False),
        ):
            tensors = chaos.build(seed)
            ys.eval(*tensors)
            results = [t.numpy() for t in tensors]
    finally:
        for double in doubles:
            double.failing = lambda what: None
    for result, reference in zip(results, expected, strict=True):
        chaos.agree(result, reference)
    ran = Counter(record.device for record in trace.records)
    ran.update(failure.kind for record in trace.records for failure in record.failures)
    return ran


def main() -> int:
    """Run many; the exit status says whether all went well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=float, default=0.05)
    options = parser.parse_args()
    ran: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.programs):
        try:
            ran += check(seed, options.faults)
        except BaseException:
            print(f"failed: seed {seed}; run it again with --seed {seed} --programs 1")
            raise
    print(f"{options.programs} programs right; steps run and failures survived: {dict(ran)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
