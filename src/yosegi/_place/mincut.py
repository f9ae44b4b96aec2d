"""Minimum cuts: the cheapest partition of the nodes of a network into two sides.

The algorithm is Boykov and Kolmogorov's: a tree grows from each side through what has capacity left, flow is sent where
they meet, and nodes whose branch was cut off look for another parent before they are let go. Networks here are long
and thin, where it takes a fifth of the time of algorithms that search anew for every flow.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_FREE: Final = 0
_FIRST: Final = 1
_SECOND: Final = 2
_ROOT: Final = -1
_ORPHAN: Final = -2


class CutNetwork:
    """Nodes with a price for being on either side, and edges with a price for lying across.

    >>> network = CutNetwork(2)
    >>> network.price(0, first=1, second=5)
    >>> network.price(1, first=4, second=2)
    >>> network.edge(0, 1, 1.0)
    >>> network.second_side()
    [False, True]
    """

    def __init__(self, nodes: int) -> None:
        self._excess = [0.0] * nodes
        """The cost of the second side minus that of the first: capacity from one side, or to the other."""
        self._to: list[int] = []
        self._left: list[float] = []
        """The capacity left of each edge; an edge and its reverse are neighbours, 2n and 2n + 1."""
        self._edges: list[list[int]] = [[] for _ in range(nodes)]

    def node(self) -> int:
        """Add a node and return its number."""
        self._excess.append(0.0)
        self._edges.append([])
        return len(self._excess) - 1

    def price(self, node: int, *, first: float = 0.0, second: float = 0.0) -> None:
        """Add the cost of a node on the first side, and on the second."""
        self._excess[node] += second - first

    def edge(self, a: int, b: int, forth: float, back: float = 0.0) -> None:
        """Add the cost of a on the first side and b on the second, and that of the reverse."""
        number = len(self._to)
        self._edges[a].append(number)
        self._edges[b].append(number + 1)
        self._to += (b, a)
        self._left += (forth, back)

    def second_side(self) -> list[bool]:
        """For each node whether it is on the second side of a cheapest cut. A network is cut once."""
        return [side == _SECOND for side in _Trees(self._excess, self._to, self._left, self._edges).grown()]


class _Trees:
    """The two trees. A node's parent is the edge that leads to it, `_ROOT`, or `_ORPHAN`."""

    def __init__(self, excess: list[float], to: list[int], left: list[float], edges: list[list[int]]) -> None:
        self.excess = excess
        self.to = to
        self.left = left
        self.edges = edges
        self.side = [_FREE if not e else _FIRST if e > 0 else _SECOND for e in excess]
        self.parent = [_ORPHAN if not e else _ROOT for e in excess]
        self.active = deque(n for n, e in enumerate(excess) if e)
        self.seen = [0] * len(excess)  # the round in which a node was last found to hang on its root
        self.depth = [1] * len(excess)
        self.round = 0

    def grown(self) -> list[int]:
        """Grow both trees until they cannot meet any more; the side of each node."""
        active, side = self.active, self.side
        while active:
            node = active[0]
            meeting = self._grow(node) if side[node] else -1
            if meeting < 0:
                active.popleft()
            else:
                self.round += 1
                self._adopt(self._augment(meeting))
        return side

    def _grow(self, node: int) -> int:
        """Take in the free neighbours of a node; the edge from the first tree to the second where they meet, or -1."""
        to, left, side, mine = self.to, self.left, self.side, self.side[node]
        for edge in self.edges[node]:
            if left[edge if mine == _FIRST else edge ^ 1] <= 0:
                continue
            other = to[edge]
            if side[other] == _FREE:
                side[other] = mine
                self.parent[other] = edge ^ 1
                self.seen[other] = self.seen[node]
                self.depth[other] = self.depth[node] + 1
                self.active.append(other)
            elif side[other] != mine:
                return edge if mine == _FIRST else edge ^ 1
        return -1

    def _augment(self, meeting: int) -> deque[int]:
        """Send all the flow that a path from root to root has room for, and return the nodes that it cuts off."""
        to, left, parent, excess = self.to, self.left, self.parent, self.excess
        flow = left[meeting]
        ends = (to[meeting ^ 1], 1), (to[meeting], 0)  # in the first tree, flow comes from the parent
        for node, reverse in ends:
            while parent[node] != _ROOT:
                edge = parent[node]
                flow = min(flow, left[edge ^ reverse])
                node = to[edge]
            flow = min(flow, abs(excess[node]))
        left[meeting] -= flow
        left[meeting ^ 1] += flow
        orphans: deque[int] = deque()
        for node, reverse in ends:
            while parent[node] != _ROOT:
                edge = parent[node]
                left[edge ^ reverse] -= flow
                left[edge ^ reverse ^ 1] += flow
                if left[edge ^ reverse] <= 0:
                    parent[node] = _ORPHAN
                    orphans.append(node)
                node = to[edge]
            excess[node] += -flow if reverse else flow
            if not excess[node]:
                parent[node] = _ORPHAN
                orphans.append(node)
        return orphans

    def _adopt(self, orphans: deque[int]) -> None:
        """Hang each orphan on another branch of its tree, the nearest to the root, or let it go."""
        to, left, parent, side = self.to, self.left, self.parent, self.side
        while orphans:
            orphan = orphans.popleft()
            mine = side[orphan]
            reverse = mine == _FIRST
            best, least = _ORPHAN, len(side) + 1
            for edge in self.edges[orphan]:
                other = to[edge]
                if left[edge ^ reverse] > 0 and side[other] == mine and parent[other] != _ORPHAN:
                    depth = self._depth(other)
                    if depth < least:
                        best, least = edge, depth
            parent[orphan] = best
            if best != _ORPHAN:
                self.seen[orphan], self.depth[orphan] = self.round, least + 1
                continue
            for edge in self.edges[orphan]:
                other = to[edge]
                if side[other] != mine:
                    continue
                if left[edge ^ reverse] > 0:
                    self.active.append(other)
                if parent[other] >= 0 and to[parent[other]] == orphan:
                    parent[other] = _ORPHAN
                    orphans.append(other)
            side[orphan] = _FREE

    def _depth(self, node: int) -> int:
        """How far a node is from its root; more than there are nodes if it hangs on an orphan."""
        to, parent, seen, depth = self.to, self.parent, self.seen, self.depth
        steps, at = 0, node
        while seen[at] != self.round:
            edge = parent[at]
            if edge == _ORPHAN:
                return len(seen) + 1
            if edge == _ROOT:
                seen[at], depth[at] = self.round, 1
                break
            steps += 1
            at = to[edge]
        found = left = steps + depth[at]
        while seen[node] != self.round:
            seen[node], depth[node] = self.round, left
            left -= 1
            node = to[parent[node]]
        return found
