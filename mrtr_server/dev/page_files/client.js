// A client of the protocol: sends requests, and keeps what went over the wire.
import { ABILITIES } from "./app_view.js";
import { mirrored, modern } from "./dialects.js";
import { KINDS } from "./questions.js";

const SHOWN = ["content-type", "retry-after", "www-authenticate", "connection", "x-served-by"];
const REPORT = "mrtr-round";

/** Return the header with the token of the page; none without one. */
export function tokenHeader(token) {
  return token ? { "Mrtr-Page-Token": token } : {};
}

/** What one request and its reply were, for the page to show. */
class Exchange {
  constructor(endpoint, method, headers, body, user) {
    this.endpoint = endpoint;
    this.method = method;
    this.user = user;
    this.headers = headers;
    this.body = body;
    this.status = 0;
    this.replyHeaders = {};
    this.reply = null;
    this.notes = [];
    this.report = null;
    this.problem = "";
    /** Whether no reply came since the server, or the network, was away. */
    this.lost = false;
    this.milliseconds = 0;
  }

  get error() {
    return this.reply?.error ?? null;
  }
}

export class Client {
  /** @param about what the server says of the page; `sandbox` is the other origin, for pages of apps. */
  constructor(about, pageToken) {
    const { endpoint, sandbox } = about;
    this.endpoint = endpoint;
    /** The address of the sandbox for pages of apps; empty where there is no other origin for it. */
    this.sandbox = sandbox && sandbox + new URL("docs/sandbox", location.href).pathname;
    /** What this host does for pages, by the names in ABILITIES. */
    this.host = Object.fromEntries(Object.keys(ABILITIES).map((name) => [name, true]));
    /** The tools of the list. */
    this.tools = [];
    this.learn(about, pageToken);
    this.dialect = modern;
    this.user = "";
    this.token = "";
    this.can = { ...Object.fromEntries(KINDS.map((kind) => [kind.name, true])), tasks: true, apps: Boolean(sandbox) };
    /** Is told when a request gets no reply; returns a promise that the server is there again. */
    this.onLost = () => Promise.resolve();
    /** The processes that have answered. */
    this.processes = new Set();
    this._ids = 0;
  }

  /** Learn what this page may do: again when the server was started anew, perhaps with other keys. */
  learn({ inside, users }, pageToken) {
    /** Why the page can't look inside the server; empty if it can. */
    this.inside = inside;
    /** Why the page can't name other users; empty if it can. */
    this.users = users;
    /** What the server printed with the address of the page. It is sent, and shown nowhere. */
    this.pageToken = inside ? "" : pageToken;
  }

  /** Write a request. `user` is who sends it; `schema` is that of the tool's arguments. */
  write(method, params, { dialect = this.dialect, user = this.user, schema = null } = {}) {
    this._ids += 1;
    const { headers, body } = dialect.request(this._ids, method, params, this);
    const all = { "Content-Type": "application/json", Accept: "application/json, text/event-stream", ...headers };
    if (dialect === modern && method === "tools/call") Object.assign(all, mirrored(schema, params.arguments));
    if (this.token) all.Authorization = `Bearer ${this.token}`;
    all["Mrtr-Page"] = this.inside ? "who" : "inside";
    if (!this.users && user) all["Mrtr-Page-User"] = user;
    return new Exchange(this.endpoint, method, all, body, user);
  }

  /** Send a request, and fill in what came of it. `onNote` is told of each notification. */
  async send(exchange, { signal = null, onNote = () => {} } = {}) {
    const began = performance.now();
    try {
      const response = await fetch(this.endpoint, {
        method: "POST",
        headers: { ...exchange.headers, ...tokenHeader(this.pageToken) },
        body: JSON.stringify(exchange.body),
        credentials: "omit",
        cache: "no-store",
        redirect: "error",
        signal,
      });
      exchange.status = response.status;
      for (const name of SHOWN) {
        if (response.headers.has(name)) exchange.replyHeaders[name] = response.headers.get(name);
      }
      exchange.report = parse(response.headers.get(REPORT));
      if ((response.headers.get("content-type") ?? "").includes("event-stream")) await readStream(response, exchange, onNote);
      else exchange.reply = parse(await response.text());
      if (exchange.reply === null && !exchange.problem) exchange.problem = `The server replied ${response.status} without a message.`;
      else if (exchange.reply && !exchange.reply.jsonrpc) exchange.problem = `The server refused the request with ${response.status}: ${exchange.reply.error ?? ""}`;
    } catch (error) {
      exchange.lost = error.name !== "AbortError";
      exchange.problem = exchange.lost ? "No reply came: the server has stopped, or can't be reached. Start it again, and send this again." : "You ended this request. The server cancels the call.";
      if (exchange.lost) this.back = this.onLost();
    }
    exchange.milliseconds = performance.now() - began;
    this.noteProcess(exchange.report);
    return exchange;
  }

  /** Who answered is worth a word where several do. */
  noteProcess(report) {
    if (report) this.processes.add(report.process);
    document.body.classList.toggle("several", this.processes.size > 1);
  }

  /** Send a request of the ratified protocol that asks nothing, and return its result. */
  async ask(method, params = {}) {
    const exchange = await this.send(this.write(method, params, { dialect: modern }));
    if (exchange.problem) throw new Error(exchange.problem);
    if (exchange.error) throw new Error(exchange.error.message);
    return exchange.reply.result;
  }

  /** Return all entries of a list, of all its pages. */
  async list(method, field) {
    const found = [];
    let cursor;
    for (let page = 0; page < 200; page += 1) {
      const result = await this.ask(method, cursor === undefined ? {} : { cursor });
      found.push(...(result[field] ?? []));
      cursor = result.nextCursor;
      if (cursor === undefined) break;
    }
    return found;
  }

  /** Return what a state holds, where the page may look inside; otherwise why not. */
  open(state) {
    return this.lookInside("state", state);
  }

  /** Return what a task did in the process that serves the page; otherwise why that is not known. */
  openTask(id) {
    return this.lookInside("task", id);
  }

  async lookInside(what, asked) {
    if (this.inside) return { error: this.inside };
    try {
      const response = await fetch(`docs/${what}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", ...tokenHeader(this.pageToken) },
        body: JSON.stringify({ [what]: asked }),
        credentials: "omit",
      });
      return await response.json();
    } catch (error) {
      return { error: error.message };
    }
  }
}

function parse(text) {
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Read server-sent events: notifications, and the reply as the last message. */
async function readStream(response, exchange, onNote) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    buffer += done ? "\n\n" : value;
    const events = buffer.split(/\r?\n\r?\n/);
    buffer = events.pop();
    for (const event of events) takeEvent(event, exchange, onNote);
    if (done) return;
  }
}

function takeEvent(event, exchange, onNote) {
  const data = [];
  for (const line of event.split(/\r?\n/)) {
    if (line.startsWith(`: ${REPORT} `)) exchange.report = parse(line.slice(REPORT.length + 3));
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  const message = parse(data.join("\n"));
  if (message === null) return;
  if (message.method) {
    exchange.notes.push(message);
    onNote(message);
  } else {
    exchange.reply = message;
  }
}
