// The console: shows what /admin/state, /admin/logs and /metrics say, and asks models to load,
// unload and answer. Plain script, no framework; everything shown is set as text.
"use strict";

const EVERY_MS = 1000;
const $ = (id) => document.getElementById(id);
const MIB = 1024 * 1024;

let key = sessionStorage.getItem("terrace-key") || "";
let before = null; // the last state
let logAfter = 0;
const charts = {};

function bytes(n) {
  if (!n) return "0";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const i = Math.min(4, Math.floor(Math.log2(n) / 10));
  return `${(n / 1024 ** i).toFixed(i === 0 || n / 1024 ** i >= 100 ? 0 : 1)} ${units[i]}`;
}

function element(tag, text, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401 || response.status === 403) {
    const body = await response.json();
    $("key-form").hidden = false;
    $("key-error").textContent = key ? body.error.message : "";
    throw new Error("an API key is needed");
  }
  return response;
}

// ---- Memory -------------------------------------------------------------------------------------

function showTiers(state) {
  const colours = palette(state.models.map((model) => model.name));
  const most = Math.max(...state.tiers.map((t) => Math.max(t.budget_bytes, t.used_bytes)), 1);
  const rows = state.tiers
    .filter((tier) => tier.used_bytes > 0 || tier.budget_bytes > 0)
    .map((tier, i) => {
      const row = element("div", null, { class: "terrace" });
      row.style.marginLeft = `${i * 3}%`;
      const share = Math.max(tier.budget_bytes, tier.used_bytes) || most;
      const name = element("div", null, { class: "name" });
      name.append(element("b", tier.tier));
      const of = tier.budget_bytes ? ` of ${bytes(tier.budget_bytes)}` : "";
      name.append(element("span", `${bytes(tier.used_bytes)}${of}`));
      const step = element("div", null, {
        class: "step", role: "img",
        "aria-label": `${tier.tier}: ${tier.lines.map((l) => `${l.model || "shared"} ${l.kind} ${bytes(l.bytes)}`).join(", ") || "empty"}`,
      });
      for (const line of tier.lines) {
        const part = element("span", null, {
          class: line.kind,
          title: `${line.model || "shared"} ${line.kind}: ${bytes(line.bytes)}`,
        });
        part.style.width = `${(100 * line.bytes) / share}%`;
        part.style.backgroundColor = colours(line.model || line.kind);
        step.append(part);
      }
      row.append(name, step);
      return row;
    });
  $("terraces").replaceChildren(...rows);
  const names = new Set(state.tiers.flatMap((t) => t.lines.map((l) => l.model || l.kind)));
  $("legend").replaceChildren(
    ...[...names].map((name) => {
      const item = element("li");
      const box = element("i");
      box.style.backgroundColor = colours(name);
      item.append(box, name);
      return item;
    }),
    element("li", "striped: KV cache"),
  );
}

// ---- Models -------------------------------------------------------------------------------------

async function act(name, verb) {
  $("action").textContent = `${verb} ${name} …`;
  try {
    const path = `/admin/models/${name.split("/").map(encodeURIComponent).join("/")}/${verb}`;
    const response = await ask(path, { method: "POST" });
    const body = await response.json();
    $("action").textContent = response.ok ? `${verb} ${name}: done` : body.error.message;
  } catch (error) {
    $("action").textContent = String(error.message);
  }
  refresh();
}

function modelRow(model) {
  const row = element("tr");
  row.dataset.model = model.name;
  const name = element("td");
  name.append(element("b", model.name));
  const about = [model.architecture, model.quantization, model.bytes && bytes(model.bytes)];
  name.append(element("small", about.filter(Boolean).join(" · ")));
  const state = element("td");
  state.append(element("span", model.state, { class: model.state }));
  if (model.reason) state.append(element("small", model.reason));
  if (model.rolled_back) {
    state.append(element("small", "version on trial, rolled back"));
  } else if (model.traffic) {
    const share = `${+(100 * model.traffic).toFixed(1)}%`;
    state.append(element("small", `version on trial, ${share} of requests`));
  }
  const memory = element("td");
  memory.append(
    element("progress", null, {
      max: model.bytes || 1, value: model.resident_bytes || 0,
      "aria-label": `${model.name} in memory`,
    }),
    element("small", `${bytes(model.resident_bytes)} of ${bytes(model.bytes)}`),
  );
  const heat = element("td");
  const cells = element("div", null, {
    class: "heat", role: "img",
    "aria-label": `${(model.segments || []).filter((s) => s[2] >= 2).length} of ${(model.segments || []).length} segments in memory`,
  });
  for (const [segment, size, now] of model.segments || []) {
    cells.append(element("i", null, { class: `s${now}`, title: `${segment} ${bytes(size)}` }));
  }
  heat.append(cells);
  const actions = element("td");
  for (const verb of ["load", "evict", "unload"]) {
    const button = element("button", verb, { type: "button", "aria-label": `${verb} ${model.name}` });
    button.disabled = verb !== "load" && model.state !== "ready";
    button.addEventListener("click", () => act(model.name, verb));
    actions.append(button);
  }
  row.append(
    name, state, memory,
    element("td", `${model.running || 0} running, ${model.waiting || 0} waiting`), heat, actions,
  );
  return row;
}

function showModels(state) {
  const focused = document.activeElement?.getAttribute("aria-label");
  $("model-rows").replaceChildren(...state.models.map(modelRow));
  if (focused) document.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  const select = $("chat-model");
  const names = state.models.map((model) => model.name);
  if ([...select.options].map((o) => o.value).join("\n") !== names.join("\n")) {
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => element("option", name, { value: name })));
    if (names.includes(chosen)) select.value = chosen;
  }
}

// ---- Links, load, log ---------------------------------------------------------------------------

function showLinks(state) {
  const seconds = before ? (state.clock_us - before.clock_us) / 1e6 : 0;
  const rows = state.links.map((link) => {
    const last = before?.links.find((each) => each.name === link.name);
    const now = last && seconds > 0 ? (link.bytes - last.bytes) / seconds : 0;
    const row = element("tr");
    row.append(
      element("td", link.name),
      element("td", `${bytes(now)}/s`),
      element("td", link.bytes_per_s ? `${bytes(link.bytes_per_s)}/s` : "not known yet"),
      element("td", link.latency_us ? `${(link.latency_us / 1000).toFixed(2)} ms` : "not known yet"),
      element("td", bytes(link.bytes)),
      element("td", link.queued),
    );
    return row;
  });
  $("link-rows").replaceChildren(...rows);
}

// The quantile of a histogram's growth since the last look, from its cumulative buckets.
let bucketsBefore = null;
function quantiles(text, shares) {
  const sums = new Map();
  for (const line of text.split("\n")) {
    const match = /^terrace_time_to_first_token_seconds_bucket\{.*le="([^"]+)"\} (\S+)/.exec(line);
    if (match) sums.set(match[1], (sums.get(match[1]) || 0) + Number(match[2]));
  }
  const last = bucketsBefore;
  bucketsBefore = sums;
  const grown = [...sums].map(([le, count]) => [le === "+Inf" ? Infinity : Number(le), count - (last?.get(le) || 0)]);
  grown.sort((a, b) => a[0] - b[0]);
  const total = grown.length ? grown[grown.length - 1][1] : 0;
  if (!last || total <= 0) return shares.map(() => null);
  return shares.map((share) => {
    const bound = grown.find(([, count]) => count >= share * total)[0];
    return Number.isFinite(bound) ? bound : grown[grown.length - 2][0];
  });
}

async function showLoad(state) {
  const now = state.time_us / 1e6;
  const seconds = before ? (state.clock_us - before.clock_us) / 1e6 : 0;
  const rate = (name) => (seconds > 0 ? (state.totals[name] - before.totals[name]) / seconds : 0);
  charts.tokens.add(now, [rate("generated_tokens"), rate("prompt_tokens")]);
  const sum = (name) => state.models.reduce((all, model) => all + (model[name] || 0), 0);
  charts.queue.add(now, [sum("running"), sum("waiting")]);
  const device = state.tiers.find((tier) => tier.tier === "device");
  const kv = device.lines.filter((l) => l.kind === "kv").reduce((all, l) => all + l.bytes, 0);
  charts.memory.add(now, [device.used_bytes / MIB, kv / MIB]);
  const metrics = await (await ask("/metrics")).text();
  charts.latency.add(now, quantiles(metrics, [0.5, 0.95]));
}

const LEVELS = { debug: 0, info: 0, warning: 1, error: 2 };
async function showLog() {
  const body = await (await ask(`/admin/logs?after=${logAfter}`)).json();
  logAfter = body.last;
  const list = $("log-lines");
  const atEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 5;
  for (const line of body.lines) {
    const { time, level, message, msg, ...fields } = line;
    const rest = Object.entries(fields).map(([name, value]) => `${name}=${value}`).join(" ");
    const item = element("li", `${time || ""} ${message || msg || ""} ${rest}`, { class: level || "info" });
    item.dataset.level = LEVELS[level] ?? 0;
    list.append(item);
  }
  while (list.children.length > 500) list.firstChild.remove();
  filterLog();
  if (atEnd) list.scrollTop = list.scrollHeight;
}
function filterLog() {
  const least = Number($("log-level").value);
  for (const item of $("log-lines").children) item.hidden = Number(item.dataset.level) < least;
}

// ---- Chat ---------------------------------------------------------------------------------------

let conversation = [];
let running = null;

function addMessage(role, text) {
  const box = element("div", text, { class: `message ${role}` });
  $("chat-messages").append(box);
  box.scrollIntoView({ block: "nearest" });
  return box;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const data = rest.slice(0, end).replace(/^data: /, "");
      rest = rest.slice(end + 2);
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function chat(text) {
  conversation.push({ role: "user", content: text });
  addMessage("user", text);
  const box = addMessage("assistant", "");
  running = new AbortController();
  $("chat-send").disabled = true;
  $("chat-stop").disabled = false;
  const start = performance.now();
  let first = 0, tokens = 0;
  try {
    const response = await ask("/v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      signal: running.signal,
      body: JSON.stringify({
        model: $("chat-model").value, messages: conversation, stream: true, max_tokens: 512,
        stream_options: { include_usage: true },
      }),
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const piece = event.choices?.[0]?.delta?.content || "";
      if (piece && !first) first = performance.now() - start;
      box.textContent += piece;
      tokens = event.usage?.completion_tokens ?? tokens;
    }
    const took = (performance.now() - start - first) / 1000;
    // What came at once, in one piece of the network, tells no rate.
    const then = took > 0.1 && tokens > 1 ? `, then ${((tokens - 1) / took).toFixed(0)}/s` : "";
    $("chat-note").textContent = `${tokens} tokens, the first after ${first.toFixed(0)} ms${then}`;
  } catch (error) {
    $("chat-note").textContent = error.name === "AbortError" ? "stopped" : error.message;
  }
  conversation.push({ role: "assistant", content: box.textContent });
  running = null;
  $("chat-send").disabled = false;
  $("chat-stop").disabled = true;
}

// ---- The loop -----------------------------------------------------------------------------------

async function refresh() {
  try {
    const state = await (await ask("/admin/state")).json();
    $("key-form").hidden = true;
    const p = state.process;
    $("status").className = "";
    $("status").textContent =
      `${state.version} on ${state.device}, up ${Math.floor(p.uptime_s / 60)} min, ` +
      `${bytes(p.rss_bytes)}${state.draining ? ", draining" : ""}`;
    showTiers(state);
    showModels(state);
    showLinks(state);
    await showLoad(state);
    before = state;
    await showLog();
  } catch (error) {
    $("status").className = "bad";
    $("status").textContent = error.message;
  }
}

charts.tokens = new Chart("chart-tokens", ["generated", "prompt"]);
charts.queue = new Chart("chart-queue", ["running", "waiting"]);
charts.latency = new Chart("chart-latency", ["median", "p95"], 0.1, true);
charts.memory = new Chart("chart-memory", ["used", "KV"]);
$("log-level").addEventListener("change", filterLog);
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  sessionStorage.setItem("terrace-key", key);
  refresh();
});
$("chat-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("chat-text").value.trim();
  if (!text || running) return;
  $("chat-text").value = "";
  chat(text);
});
$("chat-text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    $("chat-form").requestSubmit();
  }
});
$("chat-stop").addEventListener("click", () => running?.abort());
$("chat-clear").addEventListener("click", () => {
  conversation = [];
  $("chat-messages").replaceChildren();
});

(async () => {
  for (;;) {
    await refresh();
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
})();
