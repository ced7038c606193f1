// Lines over the last minutes, drawn by uPlot. Colours follow the page's theme.
"use strict";

const KEPT = 300; // samples
const LEAST_SECONDS = 60; // that a chart shows, also while it has few of them

function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

class Chart {
  // `series`: names; their lines have different dashes, so that colour is not all that tells them.
  // `least`: the scale goes at least this far. `seldom`: most samples have no value; each that has
  // one is a point, and the line spans the others.
  constructor(id, series, least = 1, seldom = false) {
    this.least = least;
    this.seldom = seldom;
    this.host = document.getElementById(id);
    this.series = series;
    this.data = [[], ...series.map(() => [])];
    this.make();
    new ResizeObserver(() => this.plot.setSize(this.size())).observe(this.host);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.make());
  }

  size() {
    return { width: Math.max(220, this.host.clientWidth), height: 170 };
  }

  make() {
    if (this.plot) this.plot.destroy();
    const quiet = themeColour("--quiet");
    const axis = { stroke: quiet, grid: { stroke: themeColour("--line") }, size: 48 };
    const strokes = [themeColour("--accent"), themeColour("--warn"), quiet];
    this.plot = new uPlot(
      {
        ...this.size(),
        legend: { live: true },
        cursor: { y: false },
        scales: {
          x: { range: () => this.times() },
          y: { range: (u, low, high) => [0, Math.max(high * 1.1, this.least)] },
        },
        axes: [{ ...axis, size: 30 }, axis],
        series: [
          {},
          ...this.series.map((label, i) => ({
            label,
            stroke: strokes[i % strokes.length],
            width: 2,
            dash: i === 0 ? undefined : [6, 3 * i],
            spanGaps: this.seldom,
            points: this.seldom ? { show: true, size: 5 } : {},
            value: (u, v) => (v == null ? "–" : v.toPrecision(3)),
          })),
        ],
      },
      this.data,
      this.host,
    );
  }

  // Of one sample alone uPlot would show years.
  times() {
    const all = this.data[0];
    const last = all.length ? all[all.length - 1] : Date.now() / 1000;
    return [Math.min(all[0] ?? last, last - LEAST_SECONDS), last];
  }

  add(seconds, values) {
    this.data[0].push(seconds);
    values.forEach((value, i) => this.data[i + 1].push(value));
    if (this.data[0].length > KEPT) this.data.forEach((list) => list.shift());
    this.plot.setData(this.data);
  }
}
