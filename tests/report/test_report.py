"""The report: what is found in a run, how it becomes specifications of charts, and the page around them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from documents import document, every_suite, not_right, placement, result, slowed

from yosegi.tools.bench.compare import SAME, SLOWER
from yosegi.tools.bench.document import Document
from yosegi.tools.bench.timing import Ratio
from yosegi.tools.cli import main
from yosegi.tools.report import changes, flow, fusion, page, parts, roofline, speed, standings
from yosegi.tools.report.charts import span, ticks
from yosegi.tools.report.contenders import players
from yosegi.tools.report.digest import Digest
from yosegi.tools.report.html import tag

vl_convert = pytest.importorskip(
    "vl_convert", reason='vl-convert-python is not installed; pip install "yosegi[report]"'
)
NASTY = '<img src=x onerror="alert(1)">&</script><!--'


@pytest.fixture(scope="module")
def html() -> str:
    run = document()
    return page.report(run, slowed(run, 0.5, "gelu"))


def line(who, *times):
    """Results at sizes 10, 100, 1000, …"""
    return [result(who, "elementwise", "add", 10 ** (n + 1), t) for n, t in enumerate(times)]


# Crossings


def test_a_crossing_is_interpolated_in_logarithms():
    (found,) = speed.crossings(line("cpu", 1.0, 10.0), line("opencl:0", 10.0, 1.0), ("cpu", "opencl:0"))
    assert found.size == pytest.approx(10**1.5)
    assert found.seconds == pytest.approx(10**0.5)
    assert (found.ahead, found.behind, found.certain) == ("opencl:0", "cpu", True)


def test_a_crossing_leans_to_where_the_two_are_nearer():
    (found,) = speed.crossings(line("cpu", 1.0, 10.0), line("opencl:0", 1.1, 1.0), ("cpu", "opencl:0"))
    assert 10 < found.size < 20


def test_each_change_of_the_lead_is_a_crossing():
    found = list(speed.crossings(line("cpu", 1, 5, 1, 5), line("opencl:0", 2, 2, 2, 2), ("cpu", "opencl:0")))
    assert [c.ahead for c in found] == ["opencl:0", "cpu", "opencl:0"]


def test_no_crossing_where_one_is_always_ahead_or_they_share_no_size():
    assert not list(speed.crossings(line("cpu", 1, 2, 3), line("opencl:0", 2, 3, 4), ("cpu", "opencl:0")))
    assert not list(speed.crossings(line("cpu", 1, 1), line("opencl:0", 1, 1), ("cpu", "opencl:0")))
    assert not list(speed.crossings(line("cpu", 1)[:1], line("opencl:0", 1, 2)[1:], ("cpu", "opencl:0")))


def test_a_crossing_within_the_noise_says_so():
    noisy = [
        replace(r, sittings=tuple((r.timing.median * luck,) * 3 for luck in (0.2, 1, 3))) for r in line("cpu", 1, 9)
    ]
    other = [replace(r, sittings=((r.timing.median,) * 3,) * 3) for r in line("opencl:0", 1.1, 8)]
    (found,) = speed.crossings(noisy, other, ("cpu", "opencl:0"))
    assert not found.certain


def test_the_finding_names_who_overtakes_whom_and_where():
    digest = Digest(document())
    series = digest.groups("elementwise")["elementwise", "gelu", "float32"]
    text = speed.finding(digest, series, speed.device_crossings(digest, series), "GB/s")
    # 3e-6 + 6e-9 n = 9e-5 + 1.5e-9 n at 19,333; between 10,000 and 100,000 the lines in logarithms cross a little later
    assert text.startswith("opencl:0 overtakes cpu at about 23,000 elements")
    assert "times the speed of torch, the fastest peer" in text


def test_the_crossing_is_marked_in_the_chart():
    (figure,) = [f for f in speed.section(Digest(document())).figures if f.title == "gelu"]
    rings = [d for layer in figure.spec["layer"] for d in layer.get("data", {}).get("values", []) if "ahead" in d]
    assert {(d["ahead"], d["behind"], d["text"]) for d in rings} == {("opencl:0", "cpu", "23k")}


def test_spread_is_drawn_as_bands_for_devices_and_bars_for_others():
    (figure,) = [f for f in speed.section(Digest(document())).figures if f.title == "add"]
    kinds = [layer["mark"]["type"] for layer in figure.spec["layer"] if "y2" in layer["encoding"]]
    assert kinds == ["area", "rule"]
    assert all(d["low"] < d["rate"] < d["high"] for d in figure.spec["data"]["values"])


# Other findings


def test_standings_are_ratios_of_speed_within_rounds():
    run = document((*line("cpu", 1.0, 1.0), *line("numpy", 2.0, 8.0)))
    (found,) = standings.standings(Digest(run))
    assert (found.device, found.peer, found.cases, found.faster, found.slower) == ("cpu", "numpy", 2, 2, 0)
    assert found.speed == Ratio(pytest.approx(4.0), pytest.approx(4.0), pytest.approx(4.0))


def test_fused_against_separate():
    run = document(
        tuple(result("cpu", "patterns", "gelu+linear", 128, t, mode=m) for m, t in (("jit", 1.0), ("separate", 2.5)))
    )
    ((_, _, ratio),) = fusion.pairs(Digest(run), "cpu")
    assert ratio.median == pytest.approx(2.5)
    (figure,) = fusion.section(Digest(run)).figures
    assert "it gains most in gelu+linear at 128 × 128: 2.5 times the speed" in figure.finding


def test_the_host_has_roofs_of_memory_and_arithmetic_and_a_device_of_memory_alone():
    limits = document().limits
    memory, compute = roofline.roofs(limits, "")
    assert [speed for _, speed in memory] == [80.0, 40.0]
    assert compute == [("float32, by torch", 250.0), ("float16, by torch", 60.0)]
    assert roofline.roofs(limits, "opencl:0") == ([("memory", 200.0)], [])


def test_no_error_at_all_has_a_place_on_the_logarithmic_axis():
    html = page.report(document())
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html)[1])
    places = [d["x"] for d in data["charts"]["precision-0"]["data"]["values"] if d["dtype"] == "float64"]
    assert places == [1e-17] * 4


def test_regressions_come_first():
    run = document()
    before = slowed(slowed(run, 0.5, "gelu/float32/1000"), 3.0, "add/float32/1000000")
    section = changes.section(Digest(run), before)
    named, everything = section.figures
    verdicts = [row.cells[0] for row in everything.table.rows]
    assert verdicts[0] == SLOWER
    assert verdicts == sorted(verdicts, key=["slower", "faster", "no difference"].index)
    assert named.spec["data"]["values"][0]["verdict"] == SLOWER
    assert "2.0 times as long" in named.finding


def test_the_same_run_twice_shows_no_difference():
    run = document()
    (everything,) = changes.section(Digest(run), run).figures
    assert {row.cells[0] for row in everything.table.rows} == {SAME}


def test_runs_of_two_machines_are_compared_with_a_notice():
    run = document()
    other = replace(run, machine={**run.machine, "fingerprint": "another", "processor": "Another one"})
    notice = changes.section(Digest(run), other).blocks[0]
    assert isinstance(notice, parts.Notice)
    assert "different machines" in notice.title
    assert "Another one" in notice.lines[0]


def test_wrong_results_stand_first():
    wrong = [not_right(r, "wrong", "its largest error is 0.5") for r in line("cpu", 1.0)]
    html = page.report(document((*line("cpu", 1.0, 1.0)[1:], *wrong)))
    assert html.index("1 result of Yosegi's is wrong") < html.index("Processor</dt>")


def test_a_contender_keeps_its_looks():
    first, second = (
        players(document(tuple(r for r in every_suite() if r.suite in s))) for s in (("matmul",), ("memory",))
    )
    for p in second:
        assert p == next(q for q in first if q.name == p.name)
    assert len({p.colour for p in first}) == len(first)


# Axes


@pytest.mark.parametrize(("low", "high"), [(1e-9, 1e3), (0.99, 1.01), (3.0, 4.0), (1.0, 1.0), (0.2, 900.0)])
def test_ticks_are_a_few_round_figures_in_the_domain(low, high):
    domain = span([low, high])
    assert domain[0] < low <= high < domain[1]
    found = ticks(*domain)
    assert 2 <= len(found) <= 9
    assert all(domain[0] <= v <= domain[1] for v in found)


# The graph of steps


def test_what_reads_nothing_stands_just_above_its_first_reader():
    assert flow.layers([(), (), (1,), (2,), (0, 3)]) == [2, 0, 1, 2, 3]


def test_boxes_of_a_layer_do_not_touch_and_every_value_has_its_line():
    reads = [(), (), (), (0, 1), (0, 2), (3,), (0, 4, 5)]
    nodes = [flow.FlowNode(f"step {n}", "1 ms", "cpu", "red", r) for n, r in enumerate(reads)]
    drawn = flow.drawing(nodes, "a graph")
    places = [tuple(map(float, p)) for p in re.findall(r"translate\(([\d.-]+),([\d.-]+)\)", drawn)]
    assert len(places) == len(nodes)
    for n, (x, y) in enumerate(places):
        assert all(y != v or abs(x - u) >= flow.BOX for u, v in places[n + 1 :])
    assert drawn.count('class="edge"') == sum(map(len, reads))


def test_lines_between_devices_are_told_from_others():
    nodes = [flow.FlowNode("a", "", "cpu", "red"), flow.FlowNode("b", "", "opencl:0", "blue", (0,))]
    assert flow.drawing(nodes, "a graph").count("crosses") == 1


# The page


class _Structure(HTMLParser):
    """Checks that elements close in order, and gathers what a test looks at."""

    EMPTY = frozenset({"meta", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.all: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, name, attributes):
        self.all.append((name, dict(attributes)))
        if name not in self.EMPTY:
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.all.append((name, dict(attributes)))

    def handle_endtag(self, name):
        assert self.open.pop() == name


def structure(html: str) -> _Structure:
    made = _Structure()
    made.feed(html)
    made.close()
    assert made.open == []
    return made


def test_the_page_is_well_formed_and_its_references_lead_somewhere(html):
    made = structure(html)
    ids = [a["id"] for _, a in made.all if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in made.all:
        for name in ("aria-labelledby", "aria-describedby"):
            assert attributes.get(name, ids[0]) in ids
        if "href" in attributes:
            assert attributes["href"].removeprefix("#") in ids
    assert [n for n, _ in made.all].count("h1") == 1
    assert {"header", "nav", "main", "footer"} <= {n for n, _ in made.all}


def test_the_page_refers_to_nothing_outside(html):
    made = structure(html)
    for name, attributes in made.all:
        assert name not in ("link", "iframe", "object", "embed", "img", "base"), name
        assert not {"src", "srcset", "data", "action", "poster"} & attributes.keys()
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_lets_these_scripts_run_and_nothing_be_loaded(html):
    (content,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    policy = content.replace("&#x27;", "'")
    assert policy.startswith("default-src 'none';")
    for body in re.findall(r'<script type="module">(.*?)</script>', html, re.DOTALL):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" in policy


def test_every_figure_says_what_to_look_for_and_what_was_found(html):
    made = structure(html)
    count = sum(name == "figure" for name, _ in made.all)
    assert count > 10
    for name in ("figcaption", "summary"):
        assert sum(n == name for n, _ in made.all) >= count
    findings = re.findall(r'<p class="finding"[^>]*>(.*?)</p>', html)
    assert len(findings) >= count
    assert all(f.endswith(".") for f in findings)


def test_every_specification_is_one():
    run = document()
    for section in page.sections(Digest(run), slowed(run, 0.5, "gelu")):
        for figure in section.figures:
            vega = vl_convert.vegalite_to_vega(figure.spec)
            assert vega["marks"], figure.id


def test_text_from_the_run_is_never_markup():
    run = document()
    run = replace(
        run,
        created=NASTY,
        machine={
            **run.machine,
            "processor": NASTY,
            "devices": [{"name": f"x:{NASTY}", "description": NASTY}],
            "absent": {NASTY: NASTY},
            "packages": {NASTY: NASTY},
        },
        skipped={NASTY: NASTY},
        results=tuple(
            replace(
                r, name=r.name + NASTY, case=r.case + NASTY, reason=NASTY if r.status != "ok" else "",
                contender=r.contender + NASTY, device=r.device and r.device + NASTY, bound=NASTY,
            )
            for r in run.results
        ),
        placement=json.loads(json.dumps(placement()).replace("relu", NASTY.replace('"', "'")).replace("matmul", "<b>")),
    )  # fmt: skip
    html = page.report(run, run)
    tags = [n for n, _ in structure(html).all]
    assert "img" not in tags
    assert tags.count("script") == html.count("</script>") == 3
    assert "<img" not in re.sub(r'<script type="module">.*?</script>', "", html, flags=re.DOTALL)


# Runs that are not as expected


def only(*suites: str) -> Document:
    return document(tuple(r for r in every_suite() if r.suite in suites))


RUNS = {
    "no results": document(()),
    "nothing right": document(tuple(not_right(r, "wrong", "no") for r in every_suite())),
    "nothing but skipped": document(tuple(not_right(r, "skipped", "no") for r in every_suite())),
    "one size": document(tuple(r for r in every_suite() if r.size in (1000, 64))),
    "one device": document(tuple(r for r in every_suite() if r.device != "opencl:0")),
    "no device": document(tuple(r for r in every_suite() if r.device is None)),
    "no yardstick": document(tuple(r for r in every_suite() if r.contender != "numpy")),
    "no limits": document(limits={"copy": {}, "device_copy": {}, "products": {}}),
    "limits of nothing": document(
        limits={"copy": {"one thread": {"4000": 0}}, "device_copy": {"opencl:0": {}}, "products": {}}
    ),
    "cases without arithmetic or traffic": document(tuple(replace(r, flops=0.0, nbytes=0) for r in every_suite())),
    "devices of different sizes": document((*line("cpu", 1, 2), *line("opencl:0", 5, 4, 3, 2)[2:])),
    "no placement": document(placement={}),
    "an odd placement": document(
        placement={"steps": [{"ops": ["x"]}, 7, {"reads": [0, 9, "a"], "actual": {"device": 3}}]}
    ),
    "steps and nothing else": document(placement={"steps": "many"}),
    "little about the machine": document(
        machine={"fingerprint": "", "processor": "", "threads": 1, "devices": [], "packages": {}}, settings={}
    ),
    "many devices": document(
        tuple(
            replace(r, device=f"gpu:{n}", contender=f"gpu:{n}, jit")
            for n in range(9)
            for r in line("cpu", 1 + n, 9 - n)
        )
    ),
    **{f"only {suite}": only(suite) for suite in dict.fromkeys(r.suite for r in every_suite())},
}


@pytest.mark.parametrize("name", RUNS)
def test_an_odd_run_has_a_page_too(name):
    for before in (None, document()):
        html = page.report(RUNS[name], before)
        structure(html)
        for section in page.sections(Digest(RUNS[name]), before):
            for figure in section.figures:
                vl_convert.vegalite_to_vega(figure.spec)


def test_a_large_run_is_cut_where_a_browser_would_be_slow():
    results = tuple(
        replace(r, name=f"{r.name} {n}", case=f"{r.case} {n}")
        for n in range(60)
        for r in every_suite()
        if r.suite in ("elementwise", "patterns", "precision")
    )
    made = page.sections(Digest(document(results)))
    assert sum(len(s.figures) for s in made) < 80
    html = "".join(s.html(()) for s in made)
    assert "the file has them all" in html
    assert "the table has them all" in html
    assert max(f.spec["height"] for s in made for f in s.figures) < 3000


# The command


def test_the_command_writes_one_file(tmp_path, capsys):
    run, before, target = tmp_path / "run.json", tmp_path / "before.json", tmp_path / "page.html"
    document().write(run)
    slowed(document(), 2.0, "add").write(before)
    assert main(["report", str(run), "--before", str(before), "--output", str(target)]) == 0
    assert "Before and after" in target.read_text(encoding="utf-8")
    assert "page.html" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda d: "{", "expected JSON"),
        (lambda d: {**d, "version": 0}, "expected version 1, got 0"),
        (lambda d: {**d, "limits": {}}, "expected a field limits.copy"),
        (
            lambda d: {**d, "limits": {**d["limits"], "copy": {"one": {"4": "x"}}}},
            "expected limits.copy.one.4 to be int or float",
        ),
        (
            lambda d: {**d, "limits": {**d["limits"], "copy": {"one": {"a": 1}}}},
            "expected numbers of bytes in limits.copy.one",
        ),
        (lambda d: {**d, "results": [{**d["results"][0], "size": 0}]}, "expected results[0].size to be 1 or more"),
        (
            lambda d: {**d, "results": [{**d["results"][0], "flops": float("nan")}]},
            "expected results[0].flops to be finite",
        ),
        (
            lambda d: {**d, "results": [d["results"][0], {**d["results"][0], "sittings": [[1.0]]}]},
            "expected results[1].sittings of [5, 5, 5] rounds",
        ),
        (lambda d: {**d, "machine": {**d["machine"], "devices": [{}]}}, "expected a field machine.devices[0].name"),
    ],
)
def test_a_file_that_is_not_a_run_is_refused_with_the_field(tmp_path, capsys, change, complaint):
    data = change(document().to_json())
    path = tmp_path / "run.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    assert main(["report", str(path), "--output", str(tmp_path / "page.html")]) == 2
    said = capsys.readouterr().err
    assert str(path) in said
    assert complaint in said
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written_says_so(tmp_path, capsys):
    document().write(tmp_path / "run.json")
    assert main(["report", str(tmp_path / "run.json"), "--output", str(tmp_path / "no" / "page.html")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_without_what_draws_the_charts_the_command_says_what_brings_it(tmp_path):
    document().write(tmp_path / "run.json")
    code = (
        "import sys; sys.modules['vl_convert'] = None; from yosegi.tools.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "report",
        str(tmp_path / "run.json"),
        "--output",
        str(tmp_path / "page.html"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'pip install "yosegi[report]"' in done.stderr


def test_elements_escape_what_is_not_markup():
    assert tag("p", "<&", title='"') == '<p title="&quot;">&lt;&amp;</p>'
