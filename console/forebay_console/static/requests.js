// Requests to the process that served the page. The token stays in this module's memory.

let token = "";
const refusedListeners = [];

export function useToken(text) {
  token = text;
}

export function onRefused(listener) {
  refusedListeners.push(listener);
}

export function urlOf(path) {
  return new URL(path.replace(/^\//, ""), document.baseURI);
}

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `The answer has status ${status}.`);
    this.status = status;
    this.problem = problem;
  }
}

// Whether a request was refused for its token, or for having none.
export function isRefusal(error) {
  return error instanceof Refused && (error.status === 401 || error.status === 403);
}

export async function request(path, options = {}) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const response = await fetch(urlOf(path), { headers, cache: "no-store", credentials: "omit", ...options });
  if (response.ok) return response;
  let problem = {};
  try {
    problem = await response.json();
  } catch {
    // A proxy's own answer, perhaps.
  }
  const refused = new Refused(response.status, problem);
  if (isRefusal(refused)) {
    for (const listener of refusedListeners) listener(response.status);
  }
  throw refused;
}

export async function getDocument(path) {
  const response = await request(path, { signal: AbortSignal.timeout(10_000) });
  return response.json();
}

// The events of a stream, by fetch: EventSource cannot send a token.
export async function* events(path, signal) {
  const response = await request(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let received = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    received += value;
    const whole = received.split("\n\n");
    received = whole.pop();
    for (const text of whole) {
      const event = { type: "message", data: "" };
      for (const line of text.split("\n")) {
        if (line.startsWith("event:")) event.type = line.slice(6).trim();
        if (line.startsWith("data:")) event.data += line.slice(5).trim();
      }
      if (event.data) yield event;
    }
  }
}

export function curlOf(path, follow = false) {
  const url = urlOf(path).href.replaceAll("'", "%27");
  const header = token ? `-H "Authorization: Bearer $TOKEN" ` : "";
  return `curl -s${follow ? "N" : ""} ${header}'${url}'`;
}
