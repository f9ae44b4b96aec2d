"""The colours of the page, light and dark, as CSS variables: charts name the variables, so they follow by themselves.

The contenders' colours were searched for such that any two stay apart in normal vision and with each kind of colour
blindness (17 in CIELAB at least), and stand out from the ground (a contrast of 3.2 at least).
"""

from __future__ import annotations

from typing import Final

DEVICES, PEERS, STEPS = 4, 5, 7
"""How many colours there are for devices, for peers, and for sizes in order."""

FONT: Final = (
    '-apple-system, "Segoe UI", Roboto, "Noto Sans", Ubuntu, Cantarell, "Liberation Sans", Arial, system-ui, sans-serif'
)

LIGHT: Final = {
    "paper": "#fbfaf7", "card": "#ffffff", "ink": "#211e1a", "soft": "#5d574e", "line": "#e3ded4", "grid": "#ece8df",
    "accent": "#7d4a1c", "tint": "#f4efe5", "good": "#1b6b3a", "bad": "#b3261e", "warn": "#8a5a00",
    "good-tint": "#e8f3ea", "bad-tint": "#fbe9e7", "warn-tint": "#fbf1dc",
    "device-0": "#0245c7", "device-1": "#af350a", "device-2": "#005351", "device-3": "#662d83",
    "yardstick": "#8f8b85",
    "peer-0": "#b759a2", "peer-1": "#3485e8", "peer-2": "#a58c00", "peer-3": "#449a4e", "peer-4": "#454b2b",
    "step-0": "#b58a4e", "step-1": "#a0703a", "step-2": "#8a5a2a", "step-3": "#70431a", "step-4": "#573312",
    "step-5": "#43250d", "step-6": "#2b1707",
}  # fmt: skip

DARK: Final = {
    "paper": "#171512", "card": "#1f1c18", "ink": "#ece7de", "soft": "#b0a799", "line": "#3a352e", "grid": "#302c26",
    "accent": "#dda762", "tint": "#29251f", "good": "#7fd39b", "bad": "#ff9c92", "warn": "#f0c069",
    "good-tint": "#1c2b20", "bad-tint": "#3a1f1c", "warn-tint": "#332914",
    "device-0": "#4783fe", "device-1": "#e68531", "device-2": "#3ee8a0", "device-3": "#d278c6",
    "yardstick": "#84807a",
    "peer-0": "#ffb9dd", "peer-1": "#6bbbff", "peer-2": "#e7dd33", "peer-3": "#9cef7d", "peer-4": "#a6865a",
    "step-0": "#8a6a40", "step-1": "#a27a43", "step-2": "#b88a4a", "step-3": "#dda762", "step-4": "#ecc38c",
    "step-5": "#f5d9b3", "step-6": "#fdeedb",
}  # fmt: skip


def rules() -> str:
    """The style rules: light at first, dark where the reader's system is dark or the button says so, light on paper."""
    light, dark = _variables(LIGHT, "light"), _variables(DARK, "dark")
    return (
        f":root{{--font:{FONT};{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{{dark}}}}}"
    )


def _variables(colours: dict[str, str], scheme: str) -> str:
    return f"color-scheme:{scheme};" + "".join(f"--{name}:{colour};" for name, colour in colours.items())
