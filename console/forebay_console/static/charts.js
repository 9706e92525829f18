// Sparklines of the last minutes; a second without a figure is a gap.

import { duration, element, number, setAttribute, setText, timeOfDay, updateRows } from "./text.js";

const WIDTH = 120;
const HEIGHT = 28;
const SECONDS = 120;
const ROWS = 30;

const CHARTS = [
  { title: "reads/s", of: [(sample) => sample.reads], text: number },
  { title: "p50, p99", of: [(sample) => sample.p50_ms, (sample) => sample.p99_ms], text: duration },
  { title: "time lag", of: [(sample) => sample.time_lag_ms], text: duration },
  { title: "age", of: [(sample) => sample.age_ms], text: duration },
  { title: "refusals/s", of: [(sample) => (sample.reads === null ? null : refusals(sample))], text: number },
];

export function refusals(sample) {
  return Object.values(sample.problems).reduce((sum, count) => sum + count, 0);
}

function refusalsText(sample) {
  const found = Object.entries(sample.problems).map(([name, count]) => `${name} ${count}`);
  return sample.reads === null ? "?" : found.join(", ") || "0";
}

function pathOf(samples, figure, highest, untilMs) {
  let path = "";
  let last = null;
  for (const sample of samples) {
    const value = figure(sample);
    if (value === null) {
      last = null;
      continue;
    }
    const x = WIDTH - ((untilMs - sample.at_ms) / 1000 / SECONDS) * WIDTH;
    const y = HEIGHT - 2 - (value / highest) * (HEIGHT - 4);
    const joined = last !== null && sample.at_ms - last < 2500;
    // A point by itself is drawn as a short line.
    path += joined ? `L${x.toFixed(1)} ${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}h1`;
    last = sample.at_ms;
  }
  return path;
}

export class StoreCharts {
  constructor(store) {
    this.store = store;
    this.samples = [];
    this.afterMs = 0;
    this.charts = CHARTS.map((chart) => {
      const paths = chart.of.map((_, i) => element("path", { class: `line line-${i}` }));
      const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, ...paths);
      const now = element("span", { class: "now" });
      const highest = element("span", { class: "highest" });
      const box = element("div", { class: "chart" }, element("span", { class: "title" }, chart.title), svg, now, highest);
      return { ...chart, paths, svg, now, highest, box };
    });
    this.rows = element("tbody");
    const heads = ["time", "reads/s", "p50", "p99", "time lag", "age", "refusals"];
    this.table = element(
      "details",
      { ontoggle: () => this.draw() },
      element("summary", {}, "These charts as a table"),
      element(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": `The last seconds of ${store}` },
        element(
          "table",
          {},
          element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
          this.rows,
        ),
      ),
    );
    this.refused = element("p", { class: "muted refused" });
    this.box = element("div", { class: "charts" }, ...this.charts.map((chart) => chart.box));
  }

  add(history) {
    this.samples.push(...history.samples.filter((sample) => sample.at_ms > this.afterMs));
    this.afterMs = this.samples.at(-1)?.at_ms ?? 0;
    const refused = Object.entries(history.served?.problems ?? {}).map(([name, count]) => `${name} ${number(count)}`);
    setText(this.refused, refused.length ? `Refused in the last minute: ${refused.join(", ")}` : "");
    while (this.samples.length && this.samples[0].at_ms <= this.afterMs - SECONDS * 1000) this.samples.shift();
    this.draw();
  }

  draw() {
    const newest = this.samples.at(-1);
    for (const chart of this.charts) {
      const figures = this.samples.flatMap((sample) => chart.of.map((figure) => figure(sample)));
      const highest = Math.max(...figures.filter((figure) => figure !== null), 0);
      chart.of.forEach((figure, i) => {
        setAttribute(chart.paths[i], "d", pathOf(this.samples, figure, highest || 1, this.afterMs));
      });
      const now = newest ? chart.of.map((figure) => figure(newest)) : [null];
      const known = now.some((figure) => figure !== null);
      const text = known ? now.map((figure) => chart.text(figure)).join(", ") : idleText(chart, newest);
      setText(chart.now, text);
      setText(chart.highest, highest ? `up to ${chart.text(highest)} in two minutes` : "");
      setAttribute(chart.svg, "aria-label", `${chart.title}: now ${text}, highest ${chart.text(highest)}`);
    }
    if (this.table.open) this.drawTable();
  }

  drawTable() {
    const newest = this.samples.slice(-ROWS).reverse();
    const make = () => element("tr", {}, ...Array.from({ length: 7 }, () => element("td")));
    updateRows(this.rows, newest, (sample) => sample.at_ms, make, (row, sample) => {
      const texts = [
        timeOfDay(sample.at_ms),
        number(sample.reads),
        sample.p50_ms === null ? "–" : duration(sample.p50_ms),
        sample.p99_ms === null ? "–" : duration(sample.p99_ms),
        duration(sample.time_lag_ms),
        duration(sample.age_ms),
        refusalsText(sample),
      ];
      texts.forEach((text, i) => setText(row.children[i], text));
    });
  }
}

// Without reads there is no time that one took; that is nothing unknown.
function idleText(chart, newest) {
  return chart.title === "p50, p99" && newest?.reads === 0 ? "no reads" : "?";
}
