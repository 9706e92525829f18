// The tolerance slider: which replicas would answer now, and which of the last minute's answers were beyond.

import { element, figureText, number, percent, setText, updateRows } from "./text.js";

// Those of the router's histograms, so that the shares are exact; a worker has none.
const BOUNDS = {
  time_lag_ms: [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 60_000, 600_000],
  age_ms: [100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 3_600_000],
  record_lag: [0, 10, 100, 1000, 10_000, 100_000, 1_000_000],
};
const PARAMETERS = { time_lag_ms: "max_time_lag_ms", age_ms: "max_age_ms", record_lag: "max_record_lag" };
const NAMES = { time_lag_ms: "time lag", age_ms: "age", record_lag: "record lag" };

export class Tolerance {
  constructor() {
    this.figureInput = document.getElementById("tolerance-figure");
    this.boundInput = document.getElementById("tolerance-bound");
    this.output = document.getElementById("tolerance-output");
    this.rows = document.querySelector("#tolerance-table tbody");
    this.figureInput.addEventListener("change", () => this.chooseFigure());
    this.boundInput.addEventListener("input", () => this.show());
    this.onChange = () => {};
    this.chooseFigure();
  }

  chooseFigure() {
    this.figure = this.figureInput.value;
    this.bounds = BOUNDS[this.figure];
    this.boundInput.max = this.bounds.length;
    this.boundInput.value = this.bounds.length;
    this.show();
  }

  show() {
    const place = Number(this.boundInput.value);
    this.bound = place < this.bounds.length ? this.bounds[place] : null;
    const text = this.bound === null ? "no bound" : `${NAMES[this.figure]} ≤ ${figureText(this.figure, this.bound)}`;
    setText(this.output, text);
    this.boundInput.setAttribute("aria-valuetext", text);
    this.onChange();
  }

  get query() {
    return this.bound === null ? "" : `${PARAMETERS[this.figure]}=${this.bound}`;
  }

  // An unknown figure meets no bound.
  isMetBy(replica) {
    if (!replica.live) return false;
    return this.bound === null || (replica[this.figure] !== null && replica[this.figure] <= this.bound);
  }

  shareRefused(served) {
    if (!served) return undefined;
    const { bounds, counts } = served[this.figure];
    const answers = counts.reduce((sum, count) => sum + count, 0);
    if (!answers) return null;
    if (this.bound === null) return 0;
    // The last count, of answers above all bounds or of an unknown figure, has none.
    const within = counts.filter((_, i) => bounds[i] <= this.bound).reduce((sum, count) => sum + count, 0);
    return 1 - within / answers;
  }

  draw(stores) {
    const make = () =>
      element("tr", {}, element("th", { scope: "row" }), element("td"), element("td"), element("td"));
    updateRows(this.rows, stores, (store) => store.name, make, (row, store) => {
      const replicas = store.partitions.flatMap((partition) => partition.replicas);
      const met = replicas.filter((replica) => this.isMetBy(replica)).length;
      const answered = store.partitions.filter((partition) =>
        partition.replicas.some((replica) => this.isMetBy(replica)),
      ).length;
      const share = this.shareRefused(store.served);
      if (!store.readMs) {
        setText(row.children[0], store.name);
        return;
      }
      const texts = [
        store.name,
        `${number(answered)} of ${number(store.partitions.length)}`,
        `${number(met)} of ${number(replicas.length)}`,
        share === undefined ? "not counted here" : percent(share) + refusedText(store.served),
      ];
      texts.forEach((text, i) => setText(row.children[i], text));
      row.classList.toggle("short", answered < store.partitions.length);
    });
  }
}

// What was refused had no answer whose lag could be counted.
function refusedText(served) {
  const refused = served.problems["lag-exceeds-tolerance"] ?? 0;
  return refused ? `, and ${number(refused)} were refused` : "";
}
