// Words, figures and elements that all parts of the page share. An unknown figure is "?", never 0.

export const CONDITIONS = {
  served: { sign: "✓", text: "served" },
  lagging: { sign: "▲", text: "lagging" },
  "lag-unknown": { sign: "?", text: "lag unknown" },
  restoring: { sign: "↻", text: "restoring" },
  standby: { sign: "◐", text: "standby only" },
  failed: { sign: "!", text: "failed" },
  unheld: { sign: "✕", text: "held by nobody" },
};

export function duration(ms) {
  if (ms === null || ms === undefined) return "?";
  if (ms < 10) return `${Math.round(ms * 10) / 10} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${Math.round(ms / 3_600_000)} h`;
  return `${Math.round(ms / 86_400_000)} days`;
}

export function number(figure) {
  return figure === null || figure === undefined ? "?" : figure.toLocaleString("en");
}

export function figureText(name, figure) {
  return name === "record_lag" ? number(figure) : duration(figure);
}

export function percent(share) {
  if (share === null) return "no reads";
  if (share === 0) return "0 %";
  return share < 0.001 ? "< 0.1 %" : `${(share * 100).toFixed(1)} %`;
}

export function timeOfDay(ms) {
  return new Date(ms).toLocaleTimeString([], { hour12: false });
}

const SVG_TAGS = new Set(["svg", "path", "line", "circle"]);

export function element(tag, properties = {}, ...children) {
  const made = SVG_TAGS.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Keeps the rows of a list: one element for each key, made once and updated in place.
export function updateRows(container, items, key, make, update) {
  const before = container.rowsByKey ?? new Map();
  const now = new Map();
  for (const item of items) {
    const name = key(item);
    const row = before.get(name) ?? make(item);
    update(row, item);
    now.set(name, row);
  }
  for (const [name, row] of before) if (!now.has(name)) row.remove();
  let at = container.firstElementChild;
  for (const row of now.values()) {
    if (row === at) at = at.nextElementSibling;
    else container.insertBefore(row, at);
  }
  container.rowsByKey = now;
}
