// What went over the wire in one round, and what the state that came back holds.
import { curlOf } from "./curl.js";
import { copyButton, el } from "./dom.js";
import { jsonView } from "./json_view.js";

const ALWAYS_SENT = new Set(["Content-Type", "Accept"]);

/** Show a request and its reply. */
export function wireView(exchange, { open = true } = {}) {
  const sent = Object.entries(exchange.headers).filter(([name]) => !ALWAYS_SENT.has(name));
  const parts = [
    el("details", { open }, el("summary", {}, "Request ", el("code", {}, exchange.method)), headersView(sent), jsonView(exchange.body, "Request"),
      copyButton("Copy as curl", "Copy as curl: this request", () => curlOf(exchange, exchange.endpoint), { title: "For a POSIX shell. A bearer token is left to $TOKEN." })),
  ];
  if (exchange.notes.length) {
    parts.push(el("details", {}, el("summary", {}, `Notifications (${exchange.notes.length})`), exchange.notes.map((note) => jsonView(note, "Notification"))));
  }
  const replied = Object.entries(exchange.replyHeaders);
  const body = exchange.reply === null ? el("p", { class: "hint" }, exchange.problem) : jsonView(exchange.reply, "Reply");
  parts.push(el("details", { open }, el("summary", {}, "Reply ", el("code", {}, exchange.status || "none")), headersView(replied), body));
  return el("div", { class: "wire" }, parts);
}

function headersView(headers) {
  if (!headers.length) return null;
  return el("dl", { class: "headers" }, headers.map(([name, value]) => [
    el("dt", {}, name),
    el("dd", {}, name === "Authorization" ? "Bearer …" : value),
  ]));
}

/** Show who answered, how long it took, and what the steps did. */
export function facts(exchange) {
  const report = exchange.report;
  const chips = [];
  if (exchange.user) chips.push(chip(`as ${exchange.user}`, "user"));
  if (exchange.status) chips.push(chip(`${exchange.milliseconds.toFixed(exchange.milliseconds < 10 ? 1 : 0)} ms`));
  if (report) chips.push(chip(`answered by ${report.process}`, "process"));
  for (const step of report?.replayed ?? []) chips.push(chip(`replayed ${step}`, "replayed"));
  for (const step of report?.ran ?? []) chips.push(chip(`ran ${step}`, "ran"));
  if (report?.counts) chips.push(chip(`${report.counts.ran} steps ran, ${report.counts.replayed} were replayed`, "ran"));
  return el("div", { class: "facts" }, chips);
}

export function chip(text, kind = "") {
  return el("span", { class: `chip ${kind}` }, text);
}

/** Show what the rounds of a task did. */
export function taskRounds(opened) {
  if (!opened.rounds) return el("p", { class: "hint" }, opened.error ?? "");
  return el("ol", { class: "task-rounds", "aria-label": "Rounds of the task" }, opened.rounds.map((round, at) => el("li", { class: "facts" },
    chip(`round ${at + 1}`), round.replayed.map((step) => chip(`replayed ${step}`, "replayed")), round.ran.map((step) => chip(`ran ${step}`, "ran")))));
}

/** Show the journal in a state: what the flow remembers. */
export function journalView(opened, title = "Journal in the state") {
  if (!opened.held) {
    return el("details", { class: "journal" }, el("summary", {}, "Journal"), el("p", { class: "hint" }, `The page can't open it. ${opened.error ?? ""}`));
  }
  const held = opened.held;
  const rows = [
    ["Rounds so far", held.rounds],
    ["Asked now", names(held.asked)],
    ["Answered", values(held.answers)],
    ["Steps", values(held["results of steps"])],
    ["Redeemed", held["redeemed once"] ? "once in the fleet" : "as often as it is sent"],
    ["Valid for", held.principal === undefined ? null : held.principal ? "the user who called" : "anyone who has it, since the caller named no user"],
    ["Expires", held.principal === undefined ? null : held.expires],
  ].filter(([, value]) => value !== null);
  const table = el("table", {}, el("tbody", {}, rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value)))));
  return el("details", { class: "journal", open: true }, el("summary", {}, title), table,
    el("details", {}, el("summary", {}, "All of it"), jsonView(held, "Journal")));
}

function names(map) {
  return Object.entries(map ?? {}).map(([key, kind]) => `${key} (${kind})`).join(", ") || "–";
}

function values(map) {
  const found = Object.entries(map ?? {});
  if (!found.length) return "–";
  return el("ul", {}, found.map(([key, value]) => el("li", {}, el("b", {}, key), ": ", el("code", {}, short(value)))));
}

function short(value) {
  const text = JSON.stringify(value);
  return text.length > 160 ? `${text.slice(0, 160)}…` : text;
}
