// Reads by hand: a key, a list, windows, sessions, versions, or the stream of a key's changes.

import { getDocument, curlOf, events, request, Refused } from "./requests.js";
import { duration, element, number, timeOfDay } from "./text.js";

const WHATS = {
  "key-value": ["value", "changes", "entries"],
  versioned: ["value", "versions", "changes"],
  window: ["windows", "all windows", "changes"],
  session: ["sessions", "all sessions", "changes"],
};
const HINTS = {
  string: "Keys are text.",
  int64: "Keys are whole numbers, such as 42.",
  json: 'Keys are JSON, such as ["a", 1].',
  bytes: "Keys are bytes, in unpadded base64url.",
};
const KEYLESS = new Set(["entries", "all windows", "all sessions"]);

export class KeyBox {
  constructor(tolerance) {
    this.tolerance = tolerance;
    this.specs = new Map();
    const byId = (id) => document.getElementById(id);
    this.form = byId("key-form");
    this.store = byId("key-store");
    this.what = byId("key-what");
    this.key = byId("key-text");
    this.query = byId("key-query");
    this.bounded = byId("key-bounded");
    this.followButton = byId("key-follow");
    this.hint = byId("key-hint");
    this.answer = byId("key-answer");
    this.following = null;
    this.store.addEventListener("change", () => this.chooseStore());
    this.what.addEventListener("change", () => this.chooseWhat());
    this.followButton.addEventListener("click", () => (this.following ? this.stop() : this.follow()));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.stop();
      if (this.what.value === "changes") this.follow();
      else this.read();
    });
  }

  offer(specs) {
    if (specs.length === this.specs.size && specs.every((spec) => this.specs.has(spec.name))) return;
    const chosen = this.store.value;
    this.specs = new Map(specs.map((spec) => [spec.name, spec]));
    this.store.replaceChildren(...specs.map((spec) => element("option", {}, spec.name)));
    if (this.specs.has(chosen)) this.store.value = chosen;
    this.chooseStore();
  }

  chooseStore() {
    const spec = this.specs.get(this.store.value);
    if (!spec) return;
    this.what.replaceChildren(...WHATS[spec.kind].map((what) => element("option", {}, what)));
    this.hint.textContent = HINTS[spec.key] ?? `Keys are of the codec ${spec.key}.`;
    this.chooseWhat();
  }

  chooseWhat() {
    this.key.disabled = KEYLESS.has(this.what.value);
    this.followButton.disabled = !WHATS[this.specs.get(this.store.value).kind].includes("changes");
  }

  path(what, cursor = "") {
    const store = `v1/stores/${encodeURIComponent(this.store.value)}`;
    const spec = this.specs.get(this.store.value);
    const exact = [spec.key, spec.value].includes("int64") ? "numbers=text" : "";
    const bounds = this.bounded.checked ? this.tolerance.query : "";
    const next = cursor && `cursor=${encodeURIComponent(cursor)}`;
    const query = [exact, bounds, this.query.value, next].filter(Boolean).join("&");
    if (what === "changes" && (this.key.value === "" || !WHATS[spec.kind].includes("value"))) {
      return `${store}/changes?${[this.chosenKeys(spec), query].filter(Boolean).join("&")}`;
    }
    if (KEYLESS.has(what)) return `${store}/${what.replace("all ", "")}?${query}`;
    const key = `${store}/keys/${encodeURIComponent(this.key.value)}`;
    return what === "value" ? `${key}?${query}` : `${key}/${what}?${query}`;
  }

  // The parameter of a store's changes; without a key they are those of all keys.
  chosenKeys(spec) {
    const text = this.key.value;
    if (text === "") return "";
    const key = spec.key === "json" ? text : spec.key === "int32" ? Number(text) : JSON.stringify(text);
    return `keys=${encodeURIComponent(`[${key}]`)}`;
  }

  async read(cursor = "") {
    if (this.key.value === "" && !KEYLESS.has(this.what.value)) {
      this.answer.replaceChildren(element("p", { class: "problem" }, "Enter a key."));
      this.key.focus();
      return;
    }
    const path = this.path(this.what.value, cursor);
    const begun = performance.now();
    try {
      const response = await request(explained(path, this.what.value), { signal: AbortSignal.timeout(30_000) });
      const text = await response.text();
      this.show(path, JSON.parse(text), text, performance.now() - begun);
    } catch (error) {
      this.showProblem(path, error, performance.now() - begun);
    }
  }

  show(path, document, text, tookMs) {
    const parts = document.partitions ?? [document];
    const content = document.partitions ? itemsOf(document) : document.value;
    // Such numbers are not exact once they are parsed.
    const shown = /\d{16,}/.test(text) ? withoutExplanation(text, document.explain) : JSON.stringify(content, null, 2);
    this.answer.replaceChildren(
      element("pre", { tabindex: "0", role: "region", "aria-label": "Value" }, shown),
      figures(document.lag, tookMs),
      element("ul", {}, ...parts.map((part) => element("li", {}, `Partition ${part.partition} answered by the ${part.role} on ${part.host}.`))),
      this.curl(path),
    );
    if (document.next) this.answer.append(this.nextPage(document.next));
    this.answer.append(...explanation(document.explain));
  }

  nextPage(cursor) {
    const button = element("button", { type: "button", id: "key-next", onclick: () => this.read(cursor) }, "Next page");
    return element("p", {}, "There is more. ", button);
  }

  showProblem(path, error, tookMs) {
    const problem = error instanceof Refused ? error.problem : {};
    const title = problem.title ? `${problem.status} ${problem.title}. ` : "";
    this.answer.replaceChildren(
      element("p", { class: "problem" }, `${title}${error.message}`),
      figures(problem.lag, tookMs),
      this.curl(path),
      ...explanation(problem.explain),
    );
  }

  curl(path, follow = false) {
    const line = curlOf(path, follow);
    const copy = () => navigator.clipboard?.writeText(line);
    return element("p", { class: "curl" }, element("code", {}, line), element("button", { type: "button", onclick: copy }, "Copy"));
  }

  stop() {
    this.following?.abort();
    this.following = null;
    this.followButton.textContent = "Follow";
  }

  async follow() {
    this.stop();
    const path = this.path("changes");
    const following = (this.following = new AbortController());
    this.followButton.textContent = "Stop";
    const log = element("ol", { class: "changes", reversed: true });
    this.answer.replaceChildren(log, this.curl(path, true));
    try {
      for await (const event of events(path, following.signal)) {
        const document = JSON.parse(event.data, exactly);
        const lag = document.lag ? ` (${lagText(document.lag)})` : "";
        const text = {
          value: () => JSON.stringify(document.value),
          values: () => keyed(document),
          absent: () => (document.entries || document.windows || document.sessions ? keyed(document) : "no value"),
          reset: () => `partitions ${document.partitions.join(", ")}`,
          lag: () => "",
          problem: () => document.detail,
        };
        log.prepend(element("li", {}, `${timeOfDay(Date.now())} ${event.type} ${text[event.type]?.() ?? event.data}${lag}`));
        while (log.children.length > 50) log.lastChild.remove();
      }
    } catch (error) {
      if (!following.signal.aborted) log.prepend(element("li", { class: "problem" }, error.message));
    }
    if (this.following === following) this.stop();
  }
}

function itemsOf(document) {
  return document.entries ?? document.windows ?? document.sessions ?? document.versions;
}

// Numbers that JavaScript would round, as they were written, where the browser can keep that.
function exactly(_, value, { source } = {}) {
  return typeof value === "number" && source && JSON.rawJSON && source !== String(value) ? JSON.rawJSON(source) : value;
}

// The items of a store's changes, those without a value if they are gone.
function keyed(document) {
  const shown = itemsOf(document).map(({ key, value, timestamp_ms: _, ...times }) => {
    const time = Object.values(times).join(" to ");
    return `${JSON.stringify(key)}${time && ` (${time})`}${value === undefined ? "" : ` = ${JSON.stringify(value)}`}`;
  });
  return shown.join(", ");
}

function lagText(lag) {
  return `record lag ${number(lag.record_lag)}, time lag ${duration(lag.time_lag_ms)}, age ${duration(lag.age_ms)}`;
}

function figures(lag, tookMs) {
  return element("p", { class: "figures" }, `${lag ? `${lagText(lag)}; ` : ""}took ${duration(tookMs)} from here`);
}

// A read that says how its answer came about: of one key, since a list asks every partition.
function explained(path, what) {
  return what === "value" ? `${path}${path.endsWith("?") ? "" : "&"}explain=true` : path;
}

// It is the last member.
function withoutExplanation(text, explain) {
  return explain ? `${text.slice(0, text.lastIndexOf(',"explain":'))}}` : text;
}

function explanation(explain) {
  if (!explain) return [];
  const steps = explain.events.map((event) => element("li", {}, `${duration(event.at_ms)}: ${stepText(event)}`));
  return [element("p", {}, `How it came about, in ${duration(explain.took_ms)}:`), element("ul", { id: "key-explain" }, ...steps)];
}

function stepText(event) {
  const { host } = event;
  switch (event.event) {
    case "candidates":
      return `to be asked, in this order: ${event.hosts.map(candidateText).join("; ") || "nobody"}`;
    case "replica":
      return `the ${event.role} here, record lag ${number(event.lag.record_lag)}`;
    case "asked":
      return event.hedge ? `${host} asked too, since no answer had come` : `${host} asked`;
    case "answered":
      return `${host} answered ${event.status} ${event.problem ?? ""}`;
    case "failed":
    case "skipped":
      return `${host} ${event.event}: ${event.why}`;
    case "slow":
      return `${host} is slow`;
    case "hedge-refused":
      return "nobody else asked: too many reads are being asked twice";
    case "map-awaited":
      return "a newer map awaited";
    case "final":
      return `the answer of ${host} taken`;
    default:
      return `${event.event} ${event.why ?? ""}`;
  }
}

function candidateText({ host, role, lag, alive, suspect }) {
  const health = alive ? (suspect ? ", slow" : "") : ", does not answer";
  return `${host} (${role}, record lag ${number(lag.record_lag)}${health})`;
}
