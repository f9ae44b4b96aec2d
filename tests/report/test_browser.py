"""The page in a real browser: what is drawn, what the console says, without a mouse, on a phone, in the dark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import browser, load, missing, prefer, set_size, settle
from documents import document, slowed

pytest.importorskip("vl_convert", reason='vl-convert-python is not installed; pip install "yosegi[report]"')
reason = missing()
if reason is not None:
    pytest.skip(reason, allow_module_level=True)

# A chart's marks, and how many of them are of a size that can be seen.
MARKS = """
const kinds = '.mark-symbol path, .mark-line path, .mark-rule line, .mark-area path';
return [...document.querySelectorAll('.chart')].map((chart) => {
  const svg = chart.querySelector('svg');
  const marks = svg ? [...svg.querySelectorAll(kinds)] : [];
  const seen = marks.filter((m) => { const b = m.getBoundingClientRect(); return b.width + b.height > 1; });
  const box = svg ? svg.getBoundingClientRect() : { width: 0, height: 0 };
  return { id: chart.id, state: chart.dataset.drawn, points: svg ? svg.querySelectorAll('.mark-symbol path').length : 0,
           marks: marks.length, seen: seen.length, width: box.width, height: box.height, place: chart.clientWidth };
});
"""


@pytest.fixture(scope="module")
def driver():
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    from yosegi.tools.report.page import report

    target = tmp_path_factory.mktemp("report") / "page.html"
    run = document()
    target.write_text(report(run, slowed(run, 0.5, "gelu")), encoding="utf-8")
    return target


@pytest.fixture
def loaded(driver, page):
    """The page as on a desk, in the light."""
    set_size(driver, 1280, 900)
    prefer(driver, "light")
    load(driver, page)
    return driver


def said(driver: Any) -> list[str]:
    return [f"{entry['level']}: {entry['message']}" for entry in driver.get_log("browser")]


def colour_of(driver: Any, selector: str, name: str) -> str:
    script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    return driver.execute_script(script, selector, name)


def focused(driver: Any) -> dict[str, Any]:
    return driver.execute_script("""
        const e = document.activeElement, s = getComputedStyle(e);
        return { tag: e.tagName, id: e.id, cls: e.className, text: e.textContent.slice(0, 40), value: e.value,
                 ring: parseFloat(s.outlineWidth), style: s.outlineStyle };
    """)


def press(driver: Any, key: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(key).perform()


def test_the_console_is_silent_and_nothing_is_loaded(loaded):
    settle(loaded)
    assert said(loaded) == []
    assert loaded.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)") == []


def test_every_chart_has_marks_that_can_be_seen(loaded):
    charts = loaded.execute_script(MARKS)
    assert len(charts) > 12
    for chart in charts:
        assert chart["state"] == "yes", chart
        assert chart["points"] > 0, chart
        assert chart["seen"] >= chart["points"], chart
        assert chart["width"] > 200, chart
        assert chart["height"] > 60, chart


def test_the_placement_is_drawn(loaded):
    boxes = loaded.execute_script("return [...document.querySelectorAll('.flow g')].map((g) => g.getBBox().width)")
    assert len(boxes) == 4
    assert min(boxes) > 100
    lengths = loaded.execute_script(
        "return [...document.querySelectorAll('.flow .edge')].map((p) => p.getTotalLength())"
    )
    assert len(lengths) == 4
    assert min(lengths) > 20


def test_charts_name_themselves(loaded):
    labels = "return [...document.querySelectorAll('.chart[role=graphics-document]')].map((e) => e.ariaLabel)"
    assert len(loaded.execute_script(labels)) == len(loaded.execute_script(MARKS))
    assert all(loaded.execute_script(labels))


def test_dark_differs_from_light_by_the_system_and_by_the_button(driver, page):
    seen = {}
    for scheme in ("light", "dark"):
        prefer(driver, scheme)
        load(driver, page)
        seen[scheme] = [
            colour_of(driver, "body", "backgroundColor"),
            colour_of(driver, "body", "color"),
            colour_of(driver, ".chart svg .mark-symbol path", "fill"),
            colour_of(driver, ".chart svg .role-axis-label text", "fill"),
        ]
        assert driver.find_element("id", "theme").get_attribute("aria-pressed") == str(scheme == "dark").lower()
    assert all(a != b for a, b in zip(seen["light"], seen["dark"], strict=True))
    driver.find_element("id", "theme").click()
    assert colour_of(driver, "body", "backgroundColor") == seen["light"][0]
    assert colour_of(driver, ".chart svg .mark-symbol path", "fill") == seen["light"][2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(driver, page, scheme):
    prefer(driver, scheme)
    load(driver, page)
    for selector, ground in {
        "body": "body", ".lead": "body", "nav a": "body", "figcaption": "figure", "summary": "figure",
        "thead th": "thead th", ".notice.good strong": ".notice.good", ".chart svg .role-axis-label text": "figure",
    }.items():  # fmt: skip
        kind = "fill" if "svg" in selector else "color"
        front, back = colour_of(driver, selector, kind), colour_of(driver, ground, "backgroundColor")
        assert contrast(front, back) >= 4.5, (selector, front, back)


def contrast(a: str, b: str) -> float:
    def light(colour: str) -> float:
        parts = [int(c) / 255 for c in colour.removeprefix("rgb(").rstrip(")").split(",")]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(a), light(b)))
    return (high + 0.05) / (low + 0.05)


def test_a_phone_never_scrolls_sideways_and_charts_fit(driver, page):
    prefer(driver, "light")
    set_size(driver, 360, 740, phone=True)
    load(driver, page)
    assert driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    driver.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    settle(driver)
    assert driver.execute_script("return document.documentElement.scrollWidth") == 360
    for chart in driver.execute_script(MARKS):
        assert chart["width"] <= chart["place"] + 1, chart
        assert chart["seen"] >= chart["points"] > 0, chart
    inside = "return [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth).length"
    assert driver.execute_script(inside) > 3  # wide tables scroll in themselves
    targets = "return [...document.querySelectorAll('button, nav a, fieldset label')]"
    assert min(driver.execute_script(f"{targets}.map((e) => e.getBoundingClientRect().height)")) >= 24
    assert said(driver) == []


def test_charts_follow_the_width_of_the_window(loaded):
    wide = {c["id"]: c["width"] for c in loaded.execute_script(MARKS)}
    set_size(loaded, 700, 900)
    settle(loaded)
    narrow = loaded.execute_script(MARKS)
    assert any(c["width"] < wide[c["id"]] for c in narrow)
    assert all(c["width"] <= c["place"] + 1 for c in narrow)


def test_the_keyboard_reaches_everything_and_the_focus_shows(loaded):
    from selenium.webdriver.common.keys import Keys

    stops = []
    for _ in range(400):
        press(loaded, Keys.TAB)
        stop = focused(loaded)
        if stop["tag"] == "BODY":
            break
        stops.append(stop)
    assert stops[0]["text"] == "Skip to the results"
    assert stops[1]["id"] == "theme"
    assert all(s["ring"] >= 2 and s["style"] == "solid" for s in stops if s["tag"] != "HTML")
    kinds = [s["tag"] for s in stops]
    assert kinds.count("A") > 8  # contents
    assert kinds.count("INPUT") >= 9  # two legends of four contenders, and the search
    assert kinds.count("SUMMARY") > 12
    assert kinds.count("SELECT") == 2
    assert sum(s["cls"].startswith("scroll") for s in stops) > 4


def test_the_button_the_tables_and_the_skip_link_work_by_key(loaded):
    from selenium.webdriver.common.keys import Keys

    press(loaded, Keys.TAB)
    press(loaded, Keys.ENTER)
    assert focused(loaded)["id"] == "main"
    before = colour_of(loaded, "body", "backgroundColor")
    loaded.execute_script("document.getElementById('theme').focus()")
    press(loaded, Keys.SPACE)
    assert colour_of(loaded, "body", "backgroundColor") != before
    loaded.execute_script("document.querySelector('figure summary').focus()")
    press(loaded, Keys.ENTER)
    assert loaded.execute_script("return document.querySelector('figure details').open")


def test_a_contender_can_be_left_out_everywhere(loaded):
    from selenium.webdriver.common.keys import Keys

    def state() -> tuple[list[int], int]:
        points = {c["id"]: c["points"] for c in loaded.execute_script(MARKS)}
        hidden = "return document.querySelectorAll('tr[data-who=torch][hidden]').length"
        return [points["speed-0"], points["precision-0"]], loaded.execute_script(hidden)

    before, none = state()
    assert none == 0
    loaded.execute_script("document.querySelector('#speed input[value=torch]').focus()")
    press(loaded, Keys.SPACE)
    settle(loaded)
    after, hidden = state()
    assert all(a < b for a, b in zip(after, before, strict=True))
    assert hidden > 8
    assert not loaded.execute_script("return document.querySelector('#precision input[value=torch]').checked")
    press(loaded, Keys.SPACE)
    settle(loaded)
    assert state() == (before, 0)


def test_results_can_be_found(loaded):
    rows = "return [...document.querySelectorAll('#all-results tbody tr:not([hidden])')].map((r) => r.textContent)"
    everything = loaded.execute_script(rows)
    loaded.find_element("id", "find-text").send_keys("GELU")
    loaded.find_element("id", "find-status").send_keys("wrong")
    found = loaded.execute_script(rows)
    assert len(found) == 1
    assert len(everything) > 90
    assert "torch" in found[0]
    assert loaded.find_element("id", "find-count").text == f"1 of {len(everything)} shown"


def test_a_pointer_shows_what_the_table_says(loaded):
    from selenium.webdriver.common.action_chains import ActionChains

    point = loaded.find_element("css selector", "#speed-0 .mark-symbol path")
    loaded.execute_script("arguments[0].scrollIntoView({ block: 'center', behavior: 'instant' })", point)
    ActionChains(loaded).move_to_element(point).perform()
    settle(loaded)
    shown = loaded.execute_script("return document.querySelector('.vg-tooltip.visible')?.innerText ?? ''")
    assert "contender" in shown
    assert "GB/s" in shown or "GFLOP/s" in shown
    assert said(loaded) == []


def test_motion_and_print_are_asked_about(driver, page):
    load(driver, page)
    feature = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    assert colour_of(driver, "html", "scrollBehavior") == "auto"
    dark = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    assert colour_of(driver, "nav", "display") == "none"
    assert colour_of(driver, "body", "backgroundColor") == "rgb(255, 255, 255)"
    assert contrast(colour_of(driver, "body", "color"), "rgb(255, 255, 255)") > 7
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


@pytest.mark.parametrize("kind", ["names that look like markup", "one size", "one device", "no results"])
def test_an_odd_run_is_drawn_in_silence(driver, tmp_path, kind):
    from yosegi.tools.report.page import report

    run = document()
    if kind.startswith("names"):
        nasty = "<b onclick='x()'>&\"</b>'.[0]"
        results = tuple(
            replace(r, name=r.name + nasty, case=r.case + nasty, contender=r.contender + nasty) for r in run.results
        )
        run = replace(run, results=tuple(replace(r, device=r.device and r.device + nasty) for r in results))
    else:
        keep = {"one size": lambda r: r.size in (1000, 64), "one device": lambda r: r.device != "cpu"}
        run = replace(run, results=tuple(filter(keep.get(kind, lambda r: False), run.results)))
    target = tmp_path / "page.html"
    target.write_text(report(run, run), encoding="utf-8")
    prefer(driver, "light")
    set_size(driver, 1280, 900)
    load(driver, target)
    assert said(driver) == []
    charts = driver.execute_script(MARKS)
    assert all(c["state"] == "yes" and c["points"] > 0 for c in charts)
    assert bool(charts) == (kind != "no results")
