// The page of `terrace bench --report`: a table and charts of what was measured. Plain script over
// uPlot; everything shown is set as text.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const colours = palette(data.models.concat(data.rows.map((row) => row.model)));
const main = document.getElementById("main");

function element(tag, text, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}

function seconds(s) {
  if (s === undefined || s === null) return "–";
  if (s < 0.01) return `${(s * 1000).toFixed(1)} ms`;
  return s < 1 ? `${(s * 1000).toFixed(0)} ms` : `${s.toFixed(2)} s`;
}

function section(title, wide) {
  const made = element("section", null, wide ? { class: "wide" } : {});
  made.append(element("h2", title));
  main.append(made);
  return made;
}

function showSummary() {
  const when = new Date(data.time_us / 1000).toLocaleString();
  document.getElementById("about").textContent =
    `${data.url}, ${data.mix}, seed ${data.seed}, ${data.seconds.toFixed(1)} s, ${when}` +
    (data.stopped ? ", ended early" : "");
  const host = section("Summary", true);
  const list = element("dl", null, { class: "figures" });
  const all = data.all;
  const facts = [
    ["requests answered", all.answered], ["refused", all.refused], ["failed", all.failed],
    ["requests/s", all.requests_per_s.toFixed(2)],
    ["tokens/s made", all.output_tokens_per_s.toFixed(1)],
    ["tokens/s read", all.prompt_tokens_per_s.toFixed(1)],
    ["first token, median", seconds(all.time_to_first_token_s.p50)],
    ["first token, p99", seconds(all.time_to_first_token_s.p99)],
    ["next token, median", seconds(all.inter_token_s.p50)],
    ["next token, p99", seconds(all.inter_token_s.p99)],
  ];
  const server = data.server?.after?.totals;
  if (server && data.server.before.totals) {
    const grown = server.model_switches - data.server.before.totals.model_switches;
    facts.push(["switches of models", grown]);
  }
  for (const [name, value] of facts) {
    const box = element("div");
    box.append(element("dt", name), element("dd", value, name === "failed" && value ? { class: "bad" } : {}));
    list.append(box);
  }
  host.append(list);
  if (data.late_s > 0.1) {
    host.append(element("p", `The load itself was late by up to ${seconds(data.late_s)}.`, { class: "note bad" }));
  }
  for (const [error, count] of Object.entries(data.errors)) {
    host.append(element("p", `${count} times: ${error}`, { class: "note bad" }));
  }
}

function showTable() {
  const host = section("By class and model", true);
  const names = [
    "class", "model", "answered", "refused", "failed", "first p50", "first p95", "first p99",
    "next p50", "next p95", "next p99", "whole p50", "tokens/s", "in goal",
  ];
  const scroll = element("div", null, { class: "scroll", tabindex: "0", role: "region", "aria-label": "Figures" });
  const table = element("table", null, { class: "cards" });
  const head = element("tr");
  for (const name of names) head.append(element("th", name, { scope: "col" }));
  table.append(element("thead"));
  table.tHead.append(head);
  const body = element("tbody");
  for (const row of data.rows) {
    const line = element("tr");
    const first = row.time_to_first_token_s, next = row.inter_token_s;
    const cells = [
      row.class, row.model, row.answered, row.refused, row.failed, seconds(first.p50),
      seconds(first.p95), seconds(first.p99), seconds(next.p50), seconds(next.p95),
      seconds(next.p99), seconds(row.request_s.p50), row.output_tokens_per_s.toFixed(1),
      row.goal_s ? `${((100 * row.in_goal) / Math.max(1, row.asked)).toFixed(1)}% in ${seconds(row.goal_s)}` : "–",
    ];
    cells.forEach((text, i) => {
      const cell = element("td", null, { "data-name": names[i] });
      const inner = element("span");
      if (i === 1) {
        const box = element("i", null, { class: "box" });
        box.style.backgroundColor = colours(row.model);
        inner.append(box);
      }
      inner.append(String(text));
      if (i === 4 && row.failed) inner.className = "bad";
      cell.append(inner);
      line.append(cell);
    });
    body.append(line);
  }
  table.append(body);
  scroll.append(table);
  host.append(scroll);
}

// ---- Charts -------------------------------------------------------------------------------------

const charts = [];
function theme(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// `series`: [{label, colour (or a name of the theme), dash}]; `columns`: x, then one for each.
// `log`: x on a logarithmic scale, in seconds.
function chart(title, series, columns, options = {}) {
  const host = section(title);
  const place = element("div", null, { role: "img", "aria-label": title });
  host.append(place);
  if (options.note) host.append(element("p", options.note, { class: "note" }));
  let plot = null;
  const size = () => ({ width: Math.max(220, place.clientWidth), height: 240 });
  const make = () => {
    if (plot) plot.destroy();
    const quiet = theme("--quiet");
    const axis = { stroke: quiet, grid: { stroke: theme("--line") }, ticks: { stroke: theme("--line") } };
    plot = new uPlot(
      {
        ...size(),
        cursor: { y: false },
        scales: {
          x: { time: false, distr: options.log ? 3 : 1 },
          y: { range: (u, low, high) => (options.share ? [0, 1] : [0, Math.max(high * 1.1, 1e-3)]) },
        },
        axes: [
          { ...axis, size: 34, values: (u, ticks) => ticks.map((t) => (t === null ? "" : options.log ? short(t) : `${t}`)) },
          { ...axis, size: 54, values: options.share ? (u, ticks) => ticks.map((t) => `${Math.round(t * 100)}%`) : options.seconds ? (u, ticks) => ticks.map(short) : undefined },
        ],
        series: [
          { label: options.log ? "within" : "s", value: (u, v) => (v == null ? "–" : options.log ? seconds(v) : v.toFixed(0)) },
          ...series.map((each) => ({
            label: each.label,
            stroke: each.colour.startsWith("--") ? theme(each.colour) : each.colour,
            width: 2, dash: each.dash, spanGaps: true, points: { show: columns[0].length < 3 },
            value: (u, v) => (v == null ? "–" : options.share ? `${(v * 100).toFixed(1)}%` : options.seconds ? seconds(v) : v.toPrecision(3)),
          })),
        ],
      },
      columns,
      place,
    );
  };
  make();
  charts.push(make);
  new ResizeObserver(() => plot.setSize(size())).observe(place);
}

function short(s) {
  if (s === null) return "";
  if (s === 0) return "0";
  return s < 1 ? `${+(s * 1000).toPrecision(2)} ms` : `${+s.toPrecision(2)} s`;
}

// Curves of shares, each with x of its own, on one x.
function joined(curves) {
  const all = [...new Set(curves.flatMap((curve) => curve.map((point) => point[0])))].sort((a, b) => a - b);
  return [
    all,
    ...curves.map((curve) => {
      const at = new Map(curve.map(([x, share]) => [x, share]));
      return all.map((x) => at.get(x) ?? null);
    }),
  ];
}

function showCharts() {
  const time = data.over_time;
  const models = Object.keys(time.tokens);
  const ofModels = models.map((model, i) => ({
    label: model, colour: colours(model), dash: i ? [8, 2 + 2 * (i % 4)] : undefined,
  }));
  chart("Tokens made a second, by model", ofModels, [time.time, ...models.map((m) => time.tokens[m])],
    { note: "Pieces of text as they came." });
  chart("Requests", [
    { label: "running at most", colour: "--accent" },
    { label: "answered/s", colour: "--quiet", dash: [6, 3] },
    { label: "refused/s", colour: "--warn", dash: [2, 3] },
    { label: "failed/s", colour: "--bad", dash: [8, 4] },
  ], [time.time, time.running, time.answered, time.refused, time.failed]);
  chart("Time to the first token, p95", ofModels,
    [time.time, ...models.map((m) => time.first_p95[m])], { seconds: true });
  for (const [key, title] of [["first", "Time to the first token: share within"], ["gap", "Time between tokens: share within"]]) {
    const curves = models.map((model) => data.curves[model][key]);
    if (curves.some((curve) => curve.length)) {
      chart(title, ofModels, joined(curves), { log: true, share: true });
    }
  }
}

showSummary();
showTable();
showCharts();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((make) => make()));
