// Draws the charts, and makes the controls work. Everything here is also there without it: each chart has its table.

const root = document.documentElement;
const { charts, config } = JSON.parse(document.getElementById("data").textContent);
const views = [];

// Theme: the reader's system decides until the button is pressed. Colours are CSS variables, so nothing is drawn again.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("theme");

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
}

function showTheme() {
  button.setAttribute("aria-pressed", String(isDark()));
}

button.hidden = false;
button.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  showTheme();
});
dark.addEventListener("change", showTheme);
showTheme();

// Charts

async function draw(id, spec) {
  const place = document.getElementById(id);
  try {
    const options = {
      mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false, config,
      tooltip: { disableDefaultStyle: true, theme: "yosegi" },
    };
    const { view } = await window.vegaEmbed(place, spec, options);
    views.push(view);
    place.dataset.drawn = "yes";
  } catch (error) {
    place.dataset.drawn = "failed";
    place.textContent = `This chart could not be drawn (${error.message}); the table below has its figures.`;
    console.error(id, error);
  }
}

// Charts look at their width when the window changes; a place can also change by itself, as when a scroll bar appears.
const widths = new WeakMap();
const resized = new ResizeObserver((entries) => {
  const changed = entries.filter(({ target, contentRect }) => widths.get(target) !== contentRect.width);
  for (const { target, contentRect } of changed) widths.set(target, contentRect.width);
  if (changed.length && root.dataset.ready) window.dispatchEvent(new Event("resize"));
});

// Filters: one choice of contenders for the whole page.

const boxes = [...document.querySelectorAll("input[data-filter]")];

function choose(changed) {
  for (const box of boxes) {
    if (box.value === changed.value) box.checked = changed.checked;
  }
  const shown = [...new Set(boxes.filter((box) => box.checked).map((box) => box.value))];
  for (const view of views) view.signal("shown", shown).runAsync();
  for (const row of document.querySelectorAll("tr[data-who]")) row.hidden = !shown.includes(row.dataset.who);
}

for (const box of boxes) box.addEventListener("change", () => choose(box));

// The table of all results

const form = document.getElementById("find");

function find() {
  const [suite, status, text] = ["suite", "status", "text"].map((name) => document.getElementById(`find-${name}`).value);
  const wanted = text.trim().toLowerCase();
  let count = 0;
  const rows = document.querySelectorAll("#all-results tbody tr");
  for (const row of rows) {
    const [first, contender] = row.cells;
    const state = row.cells[row.cells.length - 1];
    const fits =
      (!suite || first.textContent.startsWith(`${suite}/`)) &&
      (!status || state.textContent.split(":")[0] === status) &&
      `${first.textContent} ${contender.textContent}`.toLowerCase().includes(wanted);
    row.hidden = !fits;
    count += fits;
  }
  document.getElementById("find-count").textContent = `${count} of ${rows.length} shown`;
}

if (form) {
  form.addEventListener("input", find);
  form.addEventListener("submit", (event) => event.preventDefault());
  find();
}

for (const [id, spec] of Object.entries(charts)) await draw(id, spec);
root.dataset.ready = "yes";
for (const place of document.querySelectorAll(".chart")) resized.observe(place);
