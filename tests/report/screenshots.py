"""Pictures of a report, as on a desk and as on a phone: `python screenshots.py PAGE.html FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from browser import browser, load, missing, picture, prefer, set_size, settle

VIEWS = {"desktop": (1280, 2900, "light", "summary"), "phone": (390, 2700, "dark", "speed")}
"""Width and height of a picture, the theme, and the section it begins with."""


def main(page: Path, folder: Path) -> int:
    """Write report-desktop.png and report-phone.png."""
    reason = missing()
    if reason is not None:
        print(f"no pictures: {reason}", file=sys.stderr)
        return 2
    with browser() as driver:
        for name, (width, height, theme, start) in VIEWS.items():
            prefer(driver, theme)
            set_size(driver, width, height, phone=name == "phone")
            load(driver, page)
            if start != "summary":
                driver.execute_script(
                    "document.getElementById(arguments[0]).scrollIntoView({behavior: 'instant'})", start
                )
            settle(driver)
            target = folder / f"report-{name}.png"
            picture(driver, target)
            print(f"{target}: {target.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
