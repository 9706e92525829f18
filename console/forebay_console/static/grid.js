// One store: its partitions as a grid of buttons, a page at a time, with details, and the same as a table.

import { StoreCharts } from "./charts.js";
import { CONDITIONS, duration, element, number, setAttribute, setText, updateRows } from "./text.js";

export const PAGE = 200;
const ROLE_SIGNS = { active: "A", restoring: "R", standby: "S" };

export function replicaText(replica) {
  if (!replica.live) return `${replica.role} on ${replica.host}: does not answer`;
  const figures = [
    `time lag ${duration(replica.time_lag_ms)}`,
    `age ${duration(replica.age_ms)}`,
    `record lag ${number(replica.record_lag)}`,
  ];
  if (replica.restored_records !== undefined) {
    const left = replica.restore_seconds_left;
    figures.push(`${number(replica.restored_records)} records restored, ${left === null ? "?" : left} s left`);
  }
  if (replica.failure) figures.push(replica.failure);
  return `${replica.role} on ${replica.host}: ${figures.join(", ")}`;
}

export class StoreView {
  constructor(spec, tolerance) {
    this.name = spec.name;
    this.spec = spec;
    this.tolerance = tolerance;
    this.from = 0;
    this.partitions = [];
    this.served = null;
    this.visible = false;
    this.readMs = 0;
    this.chosen = null;
    this.charts = new StoreCharts(spec.name);
    this.tally = element("span", { class: "tally" });
    this.cells = element("div", {
      class: "cells",
      role: "group",
      "aria-label": `Partitions of ${spec.name}; arrow keys move between them`,
      onkeydown: (event) => this.move(event),
    });
    this.detail = element("div", { class: "detail", role: "status" });
    this.range = element("span", { class: "range" });
    this.pager = this.makePager();
    this.rows = element("tbody");
    this.table = this.makeTable();
    this.box = element(
      "article",
      { class: "store", "aria-label": spec.name },
      element(
        "div",
        { class: "head" },
        element("h3", {}, spec.name),
        element("span", { class: "muted" }, `${spec.kind}, ${number(spec.partitions)} partitions`),
        this.tally,
      ),
      this.charts.box,
      this.charts.refused,
      this.pager,
      this.cells,
      this.detail,
      this.table,
      this.charts.table,
    );
    this.box.view = this;
  }

  makePager() {
    const go = (by) => () => this.show(this.from + by);
    const to = element("input", { type: "number", min: "0", max: String(this.spec.partitions - 1) });
    return element(
      "form",
      {
        class: "controls",
        hidden: this.spec.partitions <= PAGE,
        onsubmit: (event) => {
          event.preventDefault();
          this.chosen = Number(to.value);
          this.show(this.chosen - (this.chosen % PAGE));
        },
      },
      element("button", { type: "button", onclick: go(-PAGE) }, "Previous"),
      this.range,
      element("button", { type: "button", onclick: go(PAGE) }, "Next"),
      element("label", {}, "Partition ", to),
      element("button", { type: "submit" }, "Go"),
    );
  }

  makeTable() {
    const heads = ["partition", "condition", "role", "worker", "time lag", "age", "record lag"];
    return element(
      "details",
      { ontoggle: () => this.drawTable() },
      element("summary", {}, "This grid as a table"),
      element(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": `Replicas of ${this.name}` },
        element(
          "table",
          {},
          element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
          this.rows,
        ),
      ),
    );
  }

  show(from) {
    const last = Math.floor((this.spec.partitions - 1) / PAGE) * PAGE;
    this.from = Math.max(0, Math.min(from, last));
    this.onPage?.(this);
  }

  get path() {
    return `v1/stores/${encodeURIComponent(this.name)}/replicas?from=${this.from}&limit=${PAGE}`;
  }

  take(document) {
    this.partitions = document.partitions;
    this.draw();
  }

  tallied(conditions) {
    const texts = Object.entries(conditions).map(([name, count]) => `${CONDITIONS[name].sign} ${number(count)} ${CONDITIONS[name].text}`);
    setText(this.tally, texts.join(" · "));
    this.box.classList.toggle("wrong", Object.keys(conditions).some((name) => name !== "served" && name !== "standby"));
  }

  draw() {
    setText(this.range, `${this.from} to ${Math.min(this.from + PAGE, this.spec.partitions) - 1} of ${number(this.spec.partitions)}`);
    const key = (partition) => partition.partition;
    updateRows(this.cells, this.partitions, key, (partition) => this.makeCell(partition), (cell, partition) =>
      this.drawCell(cell, partition),
    );
    const cells = [...this.cells.children];
    if (cells.length && !cells.some((cell) => cell.tabIndex === 0)) cells[0].tabIndex = 0;
    this.drawDetail();
    this.drawTable();
  }

  makeCell(partition) {
    return element(
      "button",
      { type: "button", class: "cell", tabindex: "-1", onclick: () => this.choose(partition.partition) },
      ...["sign", "place", "roles", "lag", "age"].flatMap((name) => [element("span", { class: name }), " "]),
    );
  }

  drawCell(cell, { partition, condition, replicas }) {
    const first = replicas.find((replica) => replica.live) ?? null;
    const met = replicas.some((replica) => this.tolerance.isMetBy(replica));
    const { sign, text } = CONDITIONS[condition];
    const [signs, place, roles, lag, age] = cell.children;
    setText(signs, sign);
    setText(place, String(partition));
    setText(roles, replicas.map((replica) => (replica.live ? ROLE_SIGNS[replica.role] : "×")).join(""));
    setText(lag, duration(first?.time_lag_ms));
    setText(age, duration(first?.age_ms));
    setAttribute(cell, "class", `cell ${condition}${met ? "" : " beyond"}`);
    const within = met ? "" : ", no replica within the tolerance";
    // It begins with what is seen: somebody may say that to choose the cell (WCAG 2.5.3).
    const seen = [...cell.children].map((child) => child.textContent).join(" ");
    const words = `Partition ${partition}: ${text}${within}. ${replicas.map(replicaText).join("; ")}`;
    setAttribute(cell, "aria-label", `${seen}. ${words}`);
    setAttribute(cell, "aria-pressed", String(partition === this.chosen));
  }

  choose(partition) {
    this.chosen = this.chosen === partition ? null : partition;
    for (const cell of this.cells.children) cell.tabIndex = -1;
    const cell = this.cells.rowsByKey.get(partition);
    if (cell) cell.tabIndex = 0;
    this.draw();
  }

  move(event) {
    const cells = [...this.cells.children];
    const at = cells.indexOf(document.activeElement);
    const columns = cells.filter((cell) => cell.offsetTop === cells[0].offsetTop).length;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    const to = { Home: 0, End: cells.length - 1 }[event.key] ?? at + steps[event.key];
    if (at < 0 || !cells[to]) return;
    event.preventDefault();
    cells[at].tabIndex = -1;
    cells[to].tabIndex = 0;
    cells[to].focus();
  }

  drawDetail() {
    const partition = this.partitions.find((each) => each.partition === this.chosen);
    const lines = partition ? partition.replicas.map(replicaText) : [];
    const head = partition ? [`Partition ${this.chosen}: ${CONDITIONS[partition.condition].text}`, ...lines] : [];
    updateRows(this.detail, head, (line) => head.indexOf(line), () => element("p"), setText);
  }

  drawTable() {
    if (!this.table.open) return;
    const all = this.partitions.flatMap(({ partition, condition, replicas }) =>
      replicas.length
        ? replicas.map((replica) => ({ partition, condition, replica }))
        : [{ partition, condition, replica: null }],
    );
    const key = ({ partition, replica }) => `${partition} ${replica?.host}`;
    const make = () => element("tr", {}, element("th", { scope: "row" }), ...Array.from({ length: 6 }, () => element("td")));
    updateRows(this.rows, all, key, make, (row, { partition, condition, replica }) => {
      const texts = [
        String(partition),
        CONDITIONS[condition].text,
        replica?.role ?? "none",
        replica ? replica.host + (replica.live ? "" : " (does not answer)") : "none",
        duration(replica?.time_lag_ms),
        duration(replica?.age_ms),
        number(replica?.record_lag),
      ];
      texts.forEach((text, i) => setText(row.children[i], text));
    });
  }
}
