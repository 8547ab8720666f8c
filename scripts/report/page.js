// Draws the curves and maps of a report, which scripts/report.py made, and answers pointer and keys: a cursor that all
// curves share, runs to switch off, steps or tokens, and the numbers of every curve as a table.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const shown = data.runs.map(() => true);
let byTokens = false;
let cursor = null; // on the horizontal axis of all charts; null: each curve's end
const views = [];

// ---- small things --------------------------------------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "text", "circle", "title"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const colourOf = (run) => `var(--run${run % 6})`;
const several = data.runs.length > 1;
const labelOf = (curve) => (several ? data.runs[curve.run].name + ": " : "") + curve.name;

function text(value) {
  if (value === null) return "not finite";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) return value.toExponential(2).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(5)));
}

function shortText(value) {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= unit) return Number((value / unit).toPrecision(4)) + letter;
  return size && size < 1e-3 ? value.toExponential().replace("e+", "e") : String(Number(value.toPrecision(4)));
}

// ---- scales --------------------------------------------------------------------------------------------------------

// Round numbers within [low, high].
function roundNumbers(low, high, wanted) {
  const raw = (high - low) / wanted || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-12) + step * 1e-9; k++)
    found.push(Number((k * step).toPrecision(12)));
  return found;
}

const SMALLEST_SHARE = 1e-6; // below it the scale of shares is linear, down to 0
const kinds = {
  linear: { to: (v) => v, ticks: (low, high) => roundNumbers(low, high, 5) },
  log: {
    to: (v) => (v > 0 ? Math.log10(v) : null),
    ticks(low, high) {
      const decades = Math.log10(high / low), factors = decades < 0.3 ? null : decades < 1.2 ? [1, 1.5, 2, 3, 4, 5, 6, 8] : [1];
      if (!factors) return roundNumbers(low, high, 5);
      const first = Math.floor(Math.log10(low)), last = Math.floor(Math.log10(high)), every = Math.ceil((last - first + 1) / 7);
      const powers = Array.from({ length: last - first + 1 }, (_, i) => first + i).filter((p) => p % every === 0);
      return powers.flatMap((p) => factors.map((f) => Number((f * 10 ** p).toPrecision(3))));
    },
  },
  share: {
    to: (v) => (v < SMALLEST_SHARE ? v / SMALLEST_SHARE - 1 : Math.log10(v / SMALLEST_SHARE)),
    ticks: () => [0, 1e-6, 1e-4, 1e-2, 1],
  },
};

function range(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (v !== null && Number.isFinite(v)) (low = Math.min(low, v)), (high = Math.max(high, v));
  return low <= high ? [low, high] : null;
}

// ---- charts --------------------------------------------------------------------------------------------------------

const ofStep = (curve, step) => step * (byTokens ? data.runs[curve.run].tokens : 1);
const xOf = (curve, i) => ofStep(curve, curve.x[i]);
const stepText = (curve, i) => {
  const first = curve.first ? curve.first[i] : curve.x[i], last = curve.last ? curve.last[i] : curve.x[i];
  return first === last ? text(last) : `${text(first)} to ${text(last)}`;
};

function valueText(curve, i, unit) {
  let line = text(curve.y[i]) + (unit === "%" ? " %" : "");
  const low = curve.low && curve.low[i], high = curve.high && curve.high[i];
  if (curve.smoothed) line += " smoothed";
  if (curve.low && low !== null && (curve.smoothed || low !== high)) line += low === high ? ` (${text(low)})` : ` (${text(low)} to ${text(high)})`;
  return line;
}

function nearest(curve, x) {
  let low = 0, high = curve.x.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xOf(curve, middle) < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - xOf(curve, low - 1) < xOf(curve, low) - x ? low - 1 : low;
}

class Chart {
  constructor(chart, place) {
    this.chart = chart;
    const id = "chart-" + chart.name;
    // A slider, to assistive technology: arrow keys move the cursor, and the values there are its text.
    this.svg = element("svg", { "aria-hidden": true });
    this.slider = element("div", { class: "plot", tabindex: 0, role: "slider", "aria-labelledby": id }, this.svg);
    this.readout = element("p", { class: "readout" });
    const unit = chart.unit ? ` (${chart.unit})` : "";
    const details = element("details", {}, element("summary", {}, "Values as a table"));
    details.addEventListener("toggle", () => details.open && details.children.length === 1 && details.append(...this.tables()));
    place.append(element("figure", chart.wide ? { class: "wide" } : {}, element("h3", { id }, chart.title + unit), this.slider,
      this.readout, details));
    this.slider.addEventListener("pointermove", (event) => setCursor(this.xAt(event.clientX)));
    this.slider.addEventListener("pointerdown", (event) => setCursor(this.xAt(event.clientX)));
    this.slider.addEventListener("pointerleave", () => setCursor(null));
    this.slider.addEventListener("keydown", (event) => this.key(event));
  }

  get curves() {
    return this.chart.curves.filter((c) => shown[c.run]);
  }

  xAt(clientX) {
    const box = this.svg.getBoundingClientRect();
    const part = (clientX - box.left - this.left) / (box.width - this.left - this.right);
    return this.x0 + Math.min(1, Math.max(0, part)) * (this.x1 - this.x0);
  }

  key(event) {
    const longest = this.curves.reduce((a, b) => (a && a.x.length >= b.x.length ? a : b), null);
    if (!longest) return;
    const last = longest.x.length - 1, now = cursor === null ? last : nearest(longest, cursor);
    const page = Math.max(1, Math.round(last / 10));
    const to = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - page,
      PageUp: now + page, Home: 0, End: last }[event.key];
    if (event.key === "Escape") setCursor(null);
    if (to === undefined) return;
    event.preventDefault();
    setCursor(xOf(longest, Math.min(last, Math.max(0, to))));
  }

  draw() {
    const width = this.svg.clientWidth || 320, height = this.chart.wide ? Math.min(420, Math.max(240, width * 0.5)) : 200;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.style.height = height + "px";
    this.svg.replaceChildren();
    Object.assign(this, { left: 52, right: 10, top: 8, bottom: 24, width, height });
    const kind = kinds[this.chart.scale];
    const curves = this.curves, level = this.chart.level;
    const xs = curves.map((c) => ofStep(c, (c.last || c.x).at(-1)));
    [this.x0, this.x1] = range([0, ...xs]);
    if (this.x0 === this.x1) this.x1 = this.x0 + 1;
    const values = [...curves.flatMap((c) => [...c.y, ...(c.low || []), ...(c.high || [])]), ...(level ? [level.y] : [])];
    let [low, high] = range(values.filter((v) => v !== null && kind.to(v) !== null)) || [1, 2];
    if (this.chart.scale === "share") [low, high] = [0, 1];
    else if (low === high) [low, high] = low ? [low - Math.abs(low) / 2, low + Math.abs(low) / 2] : [0, 1];
    else if (this.chart.scale === "linear" && low > 0) low = 0;
    const margin = this.chart.scale === "share" ? 0 : (kind.to(high) - kind.to(low)) * 0.04;
    const y0 = kind.to(low) - (low === 0 ? 0 : margin), y1 = kind.to(high) + margin;
    this.px = (x) => this.left + ((x - this.x0) / (this.x1 - this.x0)) * (width - this.left - this.right);
    this.py = (v) => height - this.bottom - ((kind.to(v) - y0) / (y1 - y0)) * (height - this.top - this.bottom);
    this.drawAxes(kind.ticks(low, high));
    if (level) {
      const y = this.py(level.y);
      this.svg.append(element("line", { class: "level", x1: this.left, x2: width - this.right, y1: y, y2: y }));
    }
    for (const curve of curves) this.drawCurve(curve);
    this.line = element("line", { class: "cursor", y1: this.top, y2: height - this.bottom });
    this.svg.append(this.line);
    this.update();
  }

  drawAxes(ticks) {
    const { left, right, top, bottom, width, height } = this;
    let before = Infinity;
    for (const value of ticks) {
      const y = this.py(value);
      if (y < top - 1 || y > height - bottom + 1 || before - y < 16) continue;
      before = y;
      this.svg.append(element("line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y }),
        element("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, shortText(value)));
    }
    for (const value of roundNumbers(this.x0, this.x1, Math.max(2, width / 110))) {
      const x = this.px(value);
      this.svg.append(element("line", { class: "axis", x1: x, x2: x, y1: height - bottom, y2: height - bottom + 4 }),
        element("text", { x: Math.min(x, width - right - 12), y: height - 6, "text-anchor": "middle" }, shortText(value)));
    }
    this.svg.append(element("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  }

  // The points of `values` as a path, interrupted where there is no number.
  path(curve, values, join = "M") {
    const kind = kinds[this.chart.scale];
    let path = "", pen = join;
    values.forEach((v, i) => {
      if (v === null || kind.to(v) === null) return (pen = "M");
      path += `${pen}${this.px(xOf(curve, i)).toFixed(1)} ${this.py(v).toFixed(1)}`;
      pen = "L";
    });
    return path;
  }

  // Around the smallest and largest values, a piece for every row of numbers.
  outline(curve) {
    let path = "";
    for (let begin = 0; begin < curve.x.length; begin++) {
      if (curve.low[begin] === null) continue;
      let end = begin;
      while (end + 1 < curve.x.length && curve.low[end + 1] !== null) end++;
      const at = (i, v) => `${this.px(xOf(curve, i)).toFixed(1)} ${this.py(v).toFixed(1)}`;
      const there = [], back = [];
      for (let i = begin; i <= end; i++) there.push(at(i, curve.high[i])), back.unshift(at(i, curve.low[i]));
      path += `M${[...there, ...back].join("L")}Z`;
      begin = end;
    }
    return path;
  }

  drawCurve(curve) {
    const colour = colourOf(curve.run), name = `${this.chart.name}/${data.runs[curve.run].name}/${curve.name}`;
    if (curve.low)
      this.svg.append(element("path", { class: "range", "data-range": name, style: `stroke:${colour};fill:${colour}`, d: this.outline(curve) }));
    this.svg.append(element("path", { class: "curve " + curve.style, "data-curve": name, style: `stroke:${colour}`, d: this.path(curve, curve.y) }));
    const alone = (i) => curve.y[i] !== null && (curve.y[i - 1] ?? null) === null && (curve.y[i + 1] ?? null) === null;
    curve.y.forEach((v, i) => {
      if (v === null || kinds[this.chart.scale].to(v) === null || !(alone(i) || (curve.style === "points" && curve.x.length <= 60))) return;
      this.svg.append(element("circle", { cx: this.px(xOf(curve, i)), cy: this.py(v), r: 3.2, style: `fill:${colour}` }));
    });
  }

  // Cursor and readout.
  update() {
    const x = cursor === null ? this.x1 : Math.min(this.x1, Math.max(this.x0, cursor)), at = this.px(x);
    this.line.setAttribute("x1", at);
    this.line.setAttribute("x2", at);
    this.line.style.display = cursor === null ? "none" : "";
    const parts = this.curves.map((curve) => {
      const i = nearest(curve, x);
      return [curve, `${labelOf(curve)} ${valueText(curve, i, this.chart.unit)}`, stepText(curve, i)];
    });
    const steps = parts.length && parts.every((p) => p[2] === parts[0][2]) ? `step ${parts[0][2]}` : "";
    this.readout.replaceChildren(...(steps ? [element("span", {}, steps)] : []), ...parts.map(([curve, value, step]) =>
      element("span", {}, element("span", { class: "key " + curve.style, style: `border-color:${colourOf(curve.run)}` }),
        value + (steps ? "" : `, step ${step}`))));
    const level = this.chart.level;
    if (level && level.y) this.readout.append(element("span", {}, element("span", { class: "key dotted" }), `${level.name}, ${text(level.y)}`));
    const all = parts.map((p) => p[1] + (steps ? "" : `, step ${p[2]}`));
    this.slider.setAttribute("aria-valuemin", Math.round(this.x0));
    this.slider.setAttribute("aria-valuemax", Math.round(this.x1));
    this.slider.setAttribute("aria-valuenow", Math.round(x));
    this.slider.setAttribute("aria-valuetext", [steps, ...all].filter(Boolean).join("; ") || "no run is shown");
  }

  tables() {
    return this.chart.curves.map((curve) => {
      const heads = ["step", curve.name, ...(curve.low ? ["smallest", "largest"] : [])];
      const rows = curve.x.map((_, i) => [stepText(curve, i), text(curve.y[i]), ...(curve.low ? [text(curve.low[i]), text(curve.high[i])] : [])]);
      return tableOf(`${this.chart.title}, ${labelOf(curve)}`, heads, rows);
    });
  }
}

function tableOf(caption, heads, rows) {
  const row = (cells, kind) => element("tr", {}, ...cells.map((c, i) => element(kind, kind === "th" ? { scope: "col" } : {}, c)));
  const table = element("table", {}, element("caption", {}, caption), element("thead", {}, row(heads, "th")),
    element("tbody", {}, ...rows.map((cells) => row(cells, "td"))));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption, style: "max-height:320px" }, table);
}

let waiting = false;
function setCursor(x) {
  cursor = x;
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    for (const view of views) view.update();
  });
}

// ---- maps ----------------------------------------------------------------------------------------------------------

// Dark blue to yellow, of nearly even steps to the eye (points of matplotlib's viridis).
const COLOURS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
function colourAt(part) {
  const at = Math.min(0.9999, Math.max(0, part)) * (COLOURS.length - 1), i = Math.floor(at);
  return COLOURS[i].map((c, k) => Math.round(c + (COLOURS[i + 1][k] - c) * (at - i)));
}

// Of each group of maps, the quantity that is shown.
const quantities = Object.fromEntries(Object.entries(data.quantities).map(([group, names]) => [group, Object.keys(names)[0]]));

class HeatMap {
  constructor(map, id, place) {
    Object.assign(this, { map, row: 0, column: map.first.length - 1, names: data.quantities[map.group] });
    const title = `${data.runs[map.run].name}: ${map.title}`;
    this.canvas = element("canvas", { tabindex: 0, role: "slider", "aria-labelledby": id });
    this.readout = element("p", { class: "readout" });
    this.legend = element("div", { class: "legend" });
    const details = element("details", {}, element("summary", {}, "Last values as a table"));
    details.addEventListener("toggle", () => {
      if (!details.open) return;
      const all = new Set(Object.values(map.cells).flatMap(Object.keys));
      const last = (row) => Object.keys(this.names).map((q) => (Object.hasOwn(map.cells[q], row) ? this.text(map.cells[q][row].at(-1), q) : "-"));
      const rows = [...all].map((row) => [row, ...last(row)]);
      details.replaceChildren(details.firstChild, tableOf(title, ["tensor", ...Object.values(this.names)], rows));
    });
    this.figure = element("figure", {}, element("h3", { id }, title), this.canvas, this.legend, this.readout, details);
    place.append(this.figure);
    const point = (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.column = this.clamp((event.clientX - box.left - this.left) / this.cellWidth, map.first.length);
      this.row = this.clamp((event.clientY - box.top) / this.cellHeight, this.rows.length);
      this.draw();
    };
    this.canvas.addEventListener("pointermove", point);
    this.canvas.addEventListener("pointerdown", point);
    this.canvas.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -1e9], End: [0, 1e9] }[event.key];
      if (!move) return;
      event.preventDefault();
      this.row = this.clamp(this.row + move[0], this.rows.length);
      this.column = this.clamp(this.column + move[1], map.first.length);
      this.draw();
    });
  }

  // Whether the value is a zero, which a logarithmic scale has no colour for.
  isZero(value, quantity) {
    return value === data.zero && !data.linear.includes(quantity);
  }

  clamp(value, count) {
    return Math.floor(Math.min(count - 1, Math.max(0, value)));
  }

  // A number of a map as it is shown; most are 100 * log2, of which data.zero stands for 0.
  text(value, quantity) {
    if (value === null) return "-";
    if (this.isZero(value, quantity)) return "0";
    return text(data.linear.includes(quantity) ? value : Number((2 ** (value / 100)).toPrecision(3)));
  }

  draw() {
    const { map, canvas } = this, quantity = quantities[map.group], cells = map.cells[quantity];
    this.rows = Object.keys(cells);
    this.figure.style.display = shown[map.run] && this.rows.length ? "" : "none";
    if (!this.rows.length) return;
    this.row = this.clamp(this.row, this.rows.length);
    const style = getComputedStyle(document.documentElement), width = canvas.clientWidth || 320, ratio = window.devicePixelRatio || 1;
    this.cellHeight = this.rows.length <= 24 ? 16 : this.rows.length <= 96 ? 10 : 6;
    const height = this.cellHeight * this.rows.length + 20;
    const bounds = this.boundsOf(cells, quantity);
    canvas.style.height = height + "px";
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const paint = canvas.getContext("2d");
    paint.scale(ratio, ratio);
    paint.font = "12px system-ui, sans-serif";
    this.left = Math.min(width * 0.3, 6 + Math.max(...this.rows.map((row) => paint.measureText(row).width)));
    this.cellWidth = (width - this.left) / map.first.length;
    const every = Math.ceil(14 / this.cellHeight);
    this.rows.forEach((row, r) => {
      cells[row].forEach((v, c) => {
        if (v === null) return; // its place stays empty
        paint.fillStyle = this.isZero(v, quantity) ? style.getPropertyValue("--nothing") : `rgb(${colourAt((v - bounds[0]) / (bounds[1] - bounds[0] || 1))})`;
        paint.fillRect(this.left + c * this.cellWidth, r * this.cellHeight, this.cellWidth + 0.5, this.cellHeight - 1);
      });
      paint.fillStyle = style.getPropertyValue("--quiet");
      if (r % every === 0) paint.fillText(row, 0, r * this.cellHeight + 12, this.left - 6);
    });
    paint.fillText(`step ${map.first[0]}`, this.left, height - 5);
    paint.textAlign = "right";
    paint.fillText(text(map.last.at(-1)), width, height - 5);
    paint.strokeStyle = style.getPropertyValue("--text");
    paint.lineWidth = 2;
    paint.strokeRect(this.left + this.column * this.cellWidth, this.row * this.cellHeight, this.cellWidth, this.cellHeight - 1);
    this.update(cells, bounds);
  }

  // The bounds of the scale. A few outliers, such as the last steps of a decayed learning rate, do not stretch it.
  // Sets this.uncoloured, which explains the cells that have no colour of the scale.
  boundsOf(cells, quantity) {
    if (this.bounded === cells) return this.bounds; // sorting takes long, and each move of the pointer draws
    const all = Object.values(cells).flat(), isZero = (v) => this.isZero(v, quantity);
    const sorted = all.filter((v) => v !== null && !isZero(v)).sort((a, b) => a - b), end = sorted.length - 1;
    this.uncoloured = [...(all.some(isZero) ? ["grey: 0"] : []), ...(all.includes(null) ? ["empty: no value"] : [])];
    this.bounded = cells;
    return this.bounds = sorted.length ? [sorted[Math.round(0.02 * end)], sorted[Math.round(0.98 * end)]] : null;
  }

  update(cells, bounds) {
    if (!cells) return; // the cursor of the curves has moved
    const { map, column } = this, row = this.rows[this.row], quantity = quantities[map.group];
    const steps = map.first[column] === map.last[column] ? `step ${map.first[column]}`
      : `largest of steps ${map.first[column]} to ${map.last[column]}`;
    const line = `${row}, ${steps}: ${this.names[quantity]} ${this.text(cells[row][column], quantity)}`;
    this.readout.textContent = line;
    this.canvas.setAttribute("aria-valuetext", line);
    this.canvas.setAttribute("aria-valuemin", map.first[0]);
    this.canvas.setAttribute("aria-valuemax", map.last.at(-1));
    this.canvas.setAttribute("aria-valuenow", map.last[column]);
    const bar = element("span", { class: "bar", style: `background:linear-gradient(90deg,${COLOURS.map((c) => `rgb(${c})`)})` });
    const scale = data.linear.includes(quantity) ? "linear" : "logarithmic";
    this.legend.replaceChildren(...(bounds ? ["≤ " + this.text(bounds[0], quantity), bar,
      [`≥ ${this.text(bounds[1], quantity)}, ${scale}`, ...this.uncoloured].join("; ")] : [this.uncoloured.join("; ")]));
  }
}

// ---- the page ------------------------------------------------------------------------------------------------------

function choice(label, names, chosen) {
  const select = element("select", {}, ...Object.entries(names).map(([value, name]) => element("option", { value }, name)));
  select.addEventListener("change", () => (chosen(select.value), drawAll()));
  return element("label", { class: "choice" }, label, select);
}

function drawAll() {
  for (const view of views) view.draw();
}

const controls = document.getElementById("controls");
data.runs.forEach((run, i) => {
  const box = element("input", { type: "checkbox" });
  box.checked = true;
  box.addEventListener("change", () => ((shown[i] = box.checked), drawAll()));
  const swatch = element("span", { class: "swatch", style: `background:${colourOf(i)}` });
  if (several) controls.append(element("label", {}, box, swatch, run.name));
});
if (data.runs.every((run) => run.tokens))
  controls.append(choice("horizontal axis", { step: "steps", tokens: "tokens" }, (value) => ((byTokens = value === "tokens"), (cursor = null))));
for (const chart of data.charts) views.push(new Chart(chart, document.getElementById("charts")));
for (const [group, names] of Object.entries(data.quantities)) {
  const place = document.getElementById(`heat-${group}`);
  if (place) place.append(choice("colour", names, (value) => (quantities[group] = value)));
}
for (const map of data.maps) views.push(new HeatMap(map, `map-${views.length}`, document.getElementById(`heat-${map.group}`)));
drawAll();
new ResizeObserver(drawAll).observe(document.getElementById("charts"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
