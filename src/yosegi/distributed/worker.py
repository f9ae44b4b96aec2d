"""One rank of `yosegi launch`: joins the others before the program runs, so that no error of it leaves them waiting."""

import runpy
import sys
from pathlib import Path
from typing import Final

from .communicator import RankLost
from .runtime import current, init

JOINED: Final = "yosegi: joined"
STATUS: Final = "yosegi: status "
"""Lines on stderr that tell the launcher how far the rank is. A rank that dies writes no status. Behind the status is
the deadline in which the other ranks have to end, too."""


def run(arguments: list[str]) -> None:
    """Run a program, whose path and arguments these are, as Python does."""
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")


def main(arguments: list[str]) -> None:
    """Join the other ranks, run a program, and report its status."""
    ranks = init()
    print(JOINED, file=sys.stderr, flush=True)
    status: object = 1
    try:
        run(arguments)
        status = 0
    except SystemExit as end:
        status = end.code or 0
        raise
    except RankLost as error:
        if ranks.members[ranks.rank] in error.ranks:
            status = 0  # the other ranks go on without this one
        raise
    finally:
        print(f"{STATUS}{status if isinstance(status, int) else 1} {current().deadline}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
