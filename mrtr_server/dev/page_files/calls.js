// The calls of each entry: those of this visit, and what the tab has kept of earlier ones.
import { resultView } from "./content.js";
import { button, el, newId } from "./dom.js";
import { Flow, summaryOf } from "./flow.js";
import { jsonView } from "./json_view.js";
import { forgetCall, keepCall, keptCalls } from "./kept_calls.js";
import { chip } from "./wire_view.js";

const MOST = 50; // calls on the page, the last ones; of those that go on, all

export class Calls {
  /**
   * @param place where calls are shown.
   * @param onMarks is told what the calls of each entry do, in a word by its fragment.
   * @param refill puts arguments into the form of the entry that is shown.
   */
  constructor(client, place, others, onMarks, refill) {
    Object.assign(this, { client, place, others, onMarks, refill });
    this.flows = [];
    this.place.append(...keptCalls().map((call) => this.keptView(call)));
  }

  /** Show the calls of one entry. */
  show(hash) {
    this.hash = hash;
    for (const each of this.place.children) each.hidden = each.dataset.of !== hash;
  }

  /** Begin a call. `onEnd` gets the last reply. */
  begin(entry, hash, onEnd) {
    this.fold(hash);
    const call = { id: `${Date.now()}-${newId("call")}`, hash, title: entry.title, params: entry.params, user: this.client.user, at: Date.now() };
    keepCall({ ...call, status: "not finished", failed: true, reply: {} });
    const flow = new Flow(this.client, entry, this.others, {
      onStatus: () => this.tellMarks(),
      onEnd: (reply) => {
        const { textContent: status } = flow.status;
        keepCall({ ...call, status, failed: flow.status.classList.contains("bad"), reply: brief(reply) });
        onEnd(reply);
      },
      onRemove: () => this.remove(call.id),
    });
    flow.element.dataset.of = hash;
    this.flows.unshift({ id: call.id, flow });
    this.place.prepend(flow.element);
    this.makeRoom();
    flow.element.scrollIntoView({ block: "nearest", behavior: "auto" });
    flow.start();
    return flow;
  }

  /** Leave the newest call of an entry alone open. */
  fold(hash) {
    for (const { flow } of this.flows) if (flow.element.dataset.of === hash) flow.fold();
    for (const details of this.place.querySelectorAll(".kept > .fold[open]")) details.open = false;
  }

  makeRoom() {
    for (const { flow } of this.flows.slice(MOST).filter((each) => each.flow.ended)) flow.close();
    this.flows = this.flows.filter(({ flow }) => flow.element.isConnected);
  }

  remove(id) {
    forgetCall(id);
    this.flows = this.flows.filter((each) => each.id !== id);
    this.tellMarks();
  }

  tellMarks() {
    const marks = {};
    for (const { flow } of this.flows) {
      const { of: hash } = flow.element.dataset;
      if (!flow.ended && marks[hash] !== "asks") marks[hash] = flow.asks ? "asks" : "runs";
    }
    this.onMarks(marks);
  }

  keptView(call) {
    const heading = newId("call");
    const element = el("article", { class: "flow kept", "aria-labelledby": heading, "data-of": call.hash, hidden: true },
      el("div", { class: "flow-head" }, el("h3", { id: heading }, call.title), call.user ? chip(`as ${call.user}`, "user") : null,
        chip(`at ${new Date(call.at).toLocaleTimeString()}`), chip(call.status, `status ${call.failed ? "bad" : "good"}`),
        button("Remove", () => {
          element.remove();
          forgetCall(call.id);
        }, { class: "small quiet", "aria-label": `Remove this call of ${call.title}` })),
      el("details", { class: "fold" }, el("summary", {}, summaryOf(call.params)),
        el("p", { class: "hint" }, `From before this page was loaded: the tab keeps arguments and results until it is closed.${call.leftOut ? " This one was too long to keep all of it." : ""}`),
        call.params.arguments ? jsonView(call.params.arguments, "Arguments") : null,
        call.reply.error ? el("p", { class: "says bad" }, call.reply.error.message) : null,
        call.reply.result ? el("div", { class: `result ${call.failed ? "bad" : ""}` }, resultView(call.reply.result)) : null,
        call.params.arguments && Object.keys(call.params.arguments).length ? button("Put the arguments into the form", () => this.refill(call.params.arguments), { class: "small" }) : null));
    return element;
  }
}

/** Return what of a reply is kept: nothing that only programs read. */
function brief({ result, error }) {
  if (!result) return error ? { error: { message: String(error.message) } } : {};
  const { _meta, requestState: _, ...shown } = result;
  return { result: shown };
}
