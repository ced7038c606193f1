// The page of `terrace profile`: a timeline of a request with its model's segments, and a flame
// graph. Plain script; everything shown is set as text.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const colours = palette([]);
const main = document.getElementById("main");
const SVG = "http://www.w3.org/2000/svg";

function element(tag, text, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}

function shape(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function section(title) {
  const made = element("section", null, { class: "wide" });
  made.append(element("h2", title));
  main.append(made);
  return made;
}

function ms(us) {
  return us < 10000 ? `${(us / 1000).toFixed(2)} ms` : us < 1e6 ? `${(us / 1000).toFixed(0)} ms` : `${(us / 1e6).toFixed(2)} s`;
}

function bytes(n) {
  if (!n) return "0";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const i = Math.min(4, Math.floor(Math.log2(n) / 10));
  return `${(n / 1024 ** i).toFixed(i === 0 || n / 1024 ** i >= 100 ? 0 : 1)} ${units[i]}`;
}

const timeline = data.timeline;
const took = Math.max(1, timeline.end - timeline.begin);
const KINDS = {
  request: "hsl(210 8% 45%)", queue: colours("queue"), swap: colours("swap"),
  prefill: colours("prefill"), decode: colours("decode"),
  arriving: "hsl(40 60% 45%)", there: "hsl(150 25% 55%)", used: "hsl(150 50% 35%)",
};
const SAID = { arriving: "arriving", there: "in memory", used: "in use" };

function part(x, y, width, height, colour, title) {
  const made = shape("rect", { x, y, width: Math.max(0.7, width), height, fill: colour, class: "part" });
  made.append(shape("title", {}, title));
  return made;
}

// ---- Timeline -----------------------------------------------------------------------------------

function showTimeline() {
  const host = section("Timeline");
  const place = element("div");
  host.append(place);
  const legend = element("p", null, { class: "note" });
  for (const [kind, colour] of Object.entries(KINDS)) {
    if (!timeline.spans.some((span) => span.kind === kind)) continue;
    const box = element("i", null, { class: "box" });
    box.style.backgroundColor = colour;
    legend.append(box, `${SAID[kind] || kind}   `);
  }
  if (timeline.tokens.length) legend.append(`| a piece of text (${timeline.tokens.length})`);
  host.append(legend);
  new ResizeObserver(() => place.replaceChildren(drawTimeline(place.clientWidth))).observe(place);
}

// Depth of a part within its request: swap lies in prefill.
const LANE = { request: 0, queue: 1, prefill: 1, decode: 1, swap: 2 };

function drawTimeline(width) {
  const left = width < 500 ? 70 : 130, inner = Math.max(60, width - left - 8);
  const x = (at) => left + (inner * (at - timeline.begin)) / took;
  const shown = (at) => Math.min(left + inner, Math.max(left, x(at)));
  const rows = timeline.segments, high = Math.max(4, Math.min(14, 360 / Math.max(1, rows.length)));
  const counters = Object.entries(timeline.counters).filter(([, points]) => points.some(([, v]) => v > 0));
  const top = 24, lanes = 3 * 20, segmentsAt = top + lanes + 24;
  const countersAt = segmentsAt + rows.length * high + (rows.length ? 20 : 0);
  const height = countersAt + counters.length * 54 + 8;
  const said = timeline.spans.filter((span) => span.track === "request").map((span) => `${span.kind} ${ms(span.end - span.start)}`).join(", ");
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Timeline: ${said}` });
  const ticks = width < 500 ? 2 : 4;
  for (let i = 0; i <= ticks; ++i) {
    const at = timeline.begin + (took * i) / ticks;
    svg.append(shape("line", { x1: x(at), x2: x(at), y1: top - 4, y2: height - 4, class: "grid" }));
    svg.append(shape("text", { x: x(at), y: 12, class: "tick", "text-anchor": i === ticks ? "end" : i ? "middle" : "start" }, ms((took * i) / ticks)));
  }
  svg.append(shape("text", { x: 0, y: top + 14 }, "request"));
  for (const span of timeline.spans) {
    const [from, to] = [shown(span.start), shown(span.end)];
    if (span.track === "request") {
      const y = top + 20 * LANE[span.kind];
      svg.append(part(from, y, to - from, 18, KINDS[span.kind], `${span.name}: ${ms(span.end - span.start)}`));
      if (to - from > 60) svg.append(shape("text", { x: from + 5, y: y + 13, class: "on" }, span.kind));
    } else if (span.end > timeline.begin && span.start < timeline.end) {
      const row = rows.findIndex((each) => each.name === span.name);
      svg.append(part(from, segmentsAt + row * high, to - from, Math.max(1, high - 1), KINDS[span.kind],
        `${span.name} ${bytes(rows[row].bytes)} ${SAID[span.kind]}: ${ms(span.end - span.start)}`));
    }
  }
  for (const token of timeline.tokens) {
    svg.append(shape("line", { x1: shown(token), x2: shown(token), y1: top + lanes + 2, y2: top + lanes + 12, stroke: "currentColor" }));
  }
  rows.forEach((row, i) => {
    const every = Math.ceil(14 / high);
    if (i % every === 0) svg.append(shape("text", { x: 0, y: segmentsAt + i * high + 10 }, row.name.slice(0, width < 500 ? 10 : 20)));
  });
  counters.forEach(([name, points], i) => {
    const base = countersAt + 54 * i + 44, most = Math.max(...points.map(([, v]) => v));
    svg.append(shape("text", { x: 0, y: base - 24 }, name.split(" ")[0].slice(0, width < 500 ? 10 : 20)));
    svg.append(shape("text", { x: 0, y: base - 9, class: "tick" }, `${bytes(most)}${name.endsWith("/s") ? "/s" : ""}`));
    const line = points.filter(([at]) => at >= timeline.begin && at <= timeline.end)
      .map(([at, v]) => `${x(at).toFixed(1)},${(base - (40 * v) / most).toFixed(1)}`).join(" ");
    svg.append(shape("line", { x1: left, x2: left + inner, y1: base, y2: base, class: "grid" }));
    const drawn = shape("polyline", { points: line, fill: "none", stroke: "currentColor", "stroke-width": 1.5 });
    drawn.append(shape("title", {}, `${name}: at most ${bytes(most)}`));
    svg.append(drawn);
  });
  return svg;
}

// ---- Flame graph --------------------------------------------------------------------------------

let zoomed = data.flame.tree;
function depthOf(node) {
  return 1 + Math.max(0, ...node.children.map(depthOf));
}
const count = (value) => (data.flame.unit === "us" ? ms(value) : `${value} samples`);

function showFlame() {
  const host = section("Flame graph");
  if (data.flame.note) host.append(element("p", `Of the request's parts, not of stacks: ${data.flame.note}.`, { class: "note" }));
  const whole = element("button", "Show all", { type: "button" });
  const place = element("div");
  host.append(whole, place);
  const draw = () => place.replaceChildren(drawFlame(place.clientWidth, draw));
  whole.addEventListener("click", () => {
    zoomed = data.flame.tree;
    draw();
  });
  new ResizeObserver(draw).observe(place);
  showTop(host);
}

function drawFlame(width, draw) {
  const high = 18, height = depthOf(zoomed) * high + 4;
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Flame graph of ${count(zoomed.value)}; the table below has its heaviest functions` });
  const add = (node, x, y, w) => {
    if (w < 0.5) return;
    const share = ((100 * node.value) / Math.max(1, data.flame.tree.value)).toFixed(1);
    // A hue of its own for a name, in the colours of a flame.
    const colour = `hsl(${(placeOf(node.name) * 3) % 50} 60% 40%)`;
    const box = part(x, y, w, high - 1, colour, `${node.name}: ${count(node.value)}, ${share}%`);
    box.addEventListener("click", () => {
      zoomed = node;
      draw();
    });
    svg.append(box);
    const letters = Math.floor((w - 6) / 7);
    if (letters > 2) svg.append(shape("text", { x: x + 3, y: y + 13, class: "on" }, node.name.slice(0, letters)));
    let at = x;
    for (const child of [...node.children].sort((a, b) => b.value - a.value)) {
      const wide = (w * child.value) / Math.max(1, node.value);
      add(child, at, y + high, wide);
      at += wide;
    }
  };
  add(zoomed, 0, 0, width);
  return svg;
}

// By themselves, without what they call.
function showTop(host) {
  const own = new Map();
  const walk = (node) => {
    const below = node.children.reduce((all, child) => all + child.value, 0);
    own.set(node.name, (own.get(node.name) || 0) + node.value - below);
    node.children.forEach(walk);
  };
  walk(data.flame.tree);
  const rows = [...own].filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]).slice(0, 15);
  const scroll = element("div", null, { class: "scroll", tabindex: "0", role: "region", "aria-label": "Heaviest functions" });
  const table = element("table");
  table.append(element("thead"), element("tbody"));
  const head = element("tr");
  for (const name of ["function", "by itself", "share"]) head.append(element("th", name, { scope: "col" }));
  table.tHead.append(head);
  for (const [name, value] of rows) {
    const row = element("tr");
    row.append(element("td", name), element("td", count(value)),
      element("td", `${((100 * value) / Math.max(1, data.flame.tree.value)).toFixed(1)}%`));
    table.tBodies[0].append(row);
  }
  scroll.append(table);
  host.append(scroll);
}

document.getElementById("about").textContent =
  `${ms(took)}, ${new Date(data.time_us / 1000).toLocaleString()}`;
showTimeline();
showFlame();
