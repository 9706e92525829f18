// The page: polls what is in sight once a second, and nothing while it is hidden.

import { KeyBox } from "./keys.js";
import { getDocument, isRefusal, onRefused, useToken } from "./requests.js";
import { StoreView } from "./grid.js";
import { Tolerance } from "./tolerance.js";
import { CONDITIONS, duration, element, number, setText, timeOfDay, updateRows } from "./text.js";

const POLL_MS = 1000;
const STORES_PAGE = 20;
const EVENT_SIGNS = {
  "worker-up": "▲ worker up",
  "worker-down": "▼ worker down",
  restore: "↻ restoring",
  assignment: "⇄ assignment",
  promotion: "★ promotion",
  "active-lost": "◐ active lost",
  unheld: "✕ held by nobody",
  "restore-begun": "↻ restore begun",
  "restore-ended": "✓ restore ended",
};

const byId = (id) => document.getElementById(id);
const views = new Map();
let specs = [];
let specsOf = null;
let firstStore = 0;
let polling = false;
let lastSeen = "never";

const tolerance = new Tolerance();
tolerance.onChange = () => {
  for (const view of shown()) view.draw();
  tolerance.draw(shown());
};
const keyBox = new KeyBox(tolerance);
const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target.view.visible = entry.isIntersecting;
  poll();
}, { rootMargin: "200px" });

function shown() {
  return [...(byId("store-list").rowsByKey?.values() ?? [])].map((box) => box.view);
}

function viewOf(spec) {
  if (!views.has(spec.name)) {
    const view = new StoreView(spec, tolerance);
    view.onPage = () => refreshStore(view);
    views.set(spec.name, view);
  }
  return views.get(spec.name);
}

function filtered() {
  const filter = byId("store-filter").value.trim().toLowerCase();
  return specs.filter((spec) => spec.name.toLowerCase().includes(filter));
}

function drawStores() {
  const found = filtered();
  firstStore = Math.max(0, Math.min(firstStore, Math.floor((found.length - 1) / STORES_PAGE) * STORES_PAGE));
  const page = found.slice(firstStore, firstStore + STORES_PAGE);
  updateRows(byId("store-list"), page, (spec) => spec.name, (spec) => {
    const { box } = viewOf(spec);
    sight.observe(box);
    return box;
  }, () => {});
  const go = (by) => () => {
    firstStore += by;
    drawStores();
  };
  const pager = found.length <= STORES_PAGE ? [] : [
    element("button", { type: "button", onclick: go(-STORES_PAGE) }, "Previous stores"),
    element("span", {}, `${firstStore + 1} to ${firstStore + page.length} of ${found.length}`),
    element("button", { type: "button", onclick: go(STORES_PAGE) }, "Next stores"),
  ];
  byId("store-pager").replaceChildren(...pager);
}

// Those in sight, and of the others the one that was read the longest ago.
function due() {
  const [oldest] = shown().filter((view) => !view.visible).sort((one, other) => one.readMs - other.readMs);
  return [...shown().filter((view) => view.visible), ...(oldest ? [oldest] : [])];
}

async function refreshStore(view) {
  const store = encodeURIComponent(view.name);
  const [replicas, history] = await Promise.all([
    getDocument(view.path),
    getDocument(`v1/stores/${store}/history?after_ms=${view.charts.afterMs}`),
  ]);
  view.readMs = performance.now();
  view.take(replicas);
  view.served = history.served;
  view.charts.add(history);
}

// Without a token nothing is known, so nothing is shown that seems to be.
function lock() {
  byId("main").classList.add("locked");
  setText(byId("summary"), "This process needs a token. Enter one above.");
}

function drawHealth(health) {
  byId("main").classList.remove("locked");
  const application = health.application_id ?? "?";
  setText(byId("process"), `${health.tier} of ${application}, generation ${health.generation}`);
  document.title = `${health.findings.length ? `(${health.findings.length}) ` : ""}${application} · forebay ${health.tier}`;
  setText(byId("summary"), health.summary);
  const wrong = health.findings.length;
  setText(byId("verdict"), wrong ? `${wrong} ${wrong === 1 ? "thing is" : "things are"} wrong:` : "✓ Nothing is wrong.");
  byId("verdict").className = wrong ? "wrong" : "fine";
  const make = () => element("li", {}, element("strong"), element("span"));
  updateRows(byId("findings"), health.findings, (finding) => `${finding.kind} ${finding.detail}`, make, (row, finding) => {
    row.className = finding.severity;
    setText(row.children[0], `${finding.severity === "error" ? "✕" : "▲"} ${finding.detail}`);
    setText(row.children[1], ` ${finding.remedy}`);
  });
  for (const store of health.stores) views.get(store.store)?.tallied(store.conditions);
}

function underWay(stores) {
  return stores.flatMap(({ store, restores }) => restores.map((restore) => {
    const left = restore.restore_seconds_left;
    const detail = `${store}: partition ${restore.partition} on ${restore.host}, ${number(restore.restored_records)} records so far, ${left === null ? "an unknown time" : duration(left * 1000)} left.`;
    return { at_ms: null, kind: "restore", detail, key: `${store} ${restore.partition} ${restore.host}` };
  }));
}

function drawTimeline(events, stores) {
  const newest = [...underWay(stores), ...events.toReversed().slice(0, 60)];
  const make = () => element("tr", {}, element("td"), element("td"), element("td"));
  updateRows(byId("timeline-rows"), newest, (event) => event.key ?? `${event.at_ms} ${event.kind} ${event.detail}`, make, (row, event) => {
    setText(row.children[0], event.at_ms === null ? "now" : timeOfDay(event.at_ms));
    setText(row.children[1], EVENT_SIGNS[event.kind] ?? event.kind);
    setText(row.children[2], event.detail);
  });
  byId("timeline-none").hidden = newest.length > 0;
}

async function poll() {
  if (polling || document.hidden) return;
  polling = true;
  try {
    const [health, timeline] = await Promise.all([getDocument("v1/health"), getDocument("v1/timeline")]);
    const edition = `${health.application_id} ${health.stores.map((store) => store.store)}`;
    if (health.application_id !== null && edition !== specsOf) {
      specs = (await getDocument("v1/stores")).stores;
      specsOf = edition;
      keyBox.offer(specs);
      drawStores();
    }
    drawHealth(health);
    drawTimeline(timeline.events, health.stores);
    await Promise.all(due().map(refreshStore));
    tolerance.draw(shown());
    byId("token-form").hidden = true;
    setText(byId("connection"), "");
    lastSeen = timeOfDay(Date.now());
  } catch (error) {
    if (lastSeen === "never" && isRefusal(error)) lock();
    setText(byId("connection"), lastSeen === "never" ? `✕ ${error.message}` : `✕ As of ${lastSeen}: ${error.message}`);
  } finally {
    polling = false;
  }
}

onRefused(() => {
  byId("token-form").hidden = false;
});
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value.trim());
  byId("token").value = "";
  poll();
});
byId("store-filter").addEventListener("input", drawStores);
document.addEventListener("visibilitychange", poll);
byId("legend").textContent = `${Object.values(CONDITIONS).map(({ sign, text }) => `${sign} ${text}`).join(" · ")}. In each cell: partition, roles (A active, R restoring, S standby, × does not answer), time lag, age; “?” is unknown.`;
setInterval(poll, POLL_MS);
poll();
