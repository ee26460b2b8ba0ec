// One call, from its first round to its result: asks its questions, sends their answers with the state, and shows each round.
import { Refusal } from "./app_bridge.js";
import { AppView, pageOf } from "./app_view.js";
import { announce, button, el, newId } from "./dom.js";
import { explain, explainAgain } from "./explain.js";
import { questionsView } from "./questions.js";
import { resultView } from "./content.js";
import { Pieces } from "./pieces.js";
import { TaskView } from "./task.js";
import { chip, facts, journalView, wireView } from "./wire_view.js";

const MOST_ROUNDS = 100;
const MOST_HAND_OVERS = 5;

export class Flow {
  /**
   * @param entry what is called: {method, params, title, schema, asTask, tool}.
   * @param others returns the users that may be sent along.
   * @param hooks `onEnd` gets the last reply; `onStatus` is told when the status changes; `onRemove`, that the person takes the call away.
   */
  constructor(client, entry, others, { onEnd = () => {}, onStatus = () => {}, onRemove = () => {} } = {}) {
    Object.assign(this, { onEnd, onStatus });
    this.client = client;
    this.entry = entry;
    this.others = others;
    this.dialect = client.dialect;
    this.user = client.user;
    this.state = undefined;
    this.rounds = 0;
    this.handOvers = 0;
    this.redeemedOnce = false;
    this.pieces = new Pieces();
    this.list = el("ol", { class: "rounds" });
    this.stop = button("Stop", () => this.abort.abort(), { class: "small", hidden: true });
    this.delivery = this.deliveryControls();
    const heading = newId("call");
    this.status = chip("running", "status");
    const remove = button("Remove", () => {
      this.close();
      this.onEnd({ kind: "problem" });
      onRemove();
    }, { class: "small quiet", "aria-label": `Remove this call of ${entry.title}` });
    this.body = el("details", { class: "fold", open: true }, el("summary", {}, summaryOf(entry.params)), this.delivery.element, this.list);
    this.element = el("article", { class: "flow", "aria-labelledby": heading },
      el("div", { class: "flow-head" }, el("h3", { id: heading }, entry.title), this.status, this.stop, remove), this.body);
  }

  /** Take the call off the page. */
  close() {
    this.abort?.abort();
    this.task?.leave();
    this.app?.close();
    this.element.remove();
  }

  /** Whether a person is asked. */
  get asks() {
    return this.status.textContent === "asks" || Boolean(this.task?.asked);
  }

  /** Make room for a newer call: one that has ended is a line, and one that goes on shows no messages. */
  fold() {
    foldWires(this.element);
    if (this.ended) this.body.open = false;
  }

  deliveryControls() {
    const next = { lose: false, twice: false };
    const toggle = (name, text, title) => {
      const control = button(text, () => {
        next[name] = !next[name];
        control.setAttribute("aria-pressed", String(next[name]));
      }, { class: "small toggle", "aria-pressed": "false", title });
      return control;
    };
    const lose = toggle("lose", "Lose the next reply", "The reply of the next round is dropped, and the request is sent again");
    const twice = toggle("twice", "Deliver the next request twice", "The next request is sent two times at once");
    const element = el("div", { class: "trouble", role: "group", "aria-label": "Try a bad network" }, el("span", { class: "hint" }, "Try a bad network:"), lose, twice);
    return {
      element,
      take() {
        const taken = { ...next };
        for (const [name, control] of [["lose", lose], ["twice", twice]]) {
          next[name] = false;
          control.setAttribute("aria-pressed", "false");
        }
        return taken;
      },
    };
  }

  start() {
    return this.round(undefined);
  }

  async round(answers) {
    const card = this.newCard();
    this.answers = answers;
    const params = { ...this.entry.params };
    if (this.entry.method === "tools/call") params.stream = {};
    if (this.state !== undefined) params.requestState = this.state;
    if (answers !== undefined) params.inputResponses = answers;
    const offered = this.entry.asTask && this.entry.method === "tools/call" ? this.dialect.offerTask(params) : params;
    const trouble = this.delivery.take();
    const had = { hadState: this.state !== undefined, redeemedOnce: this.redeemedOnce };
    const write = (user = this.user) => this.client.write(this.entry.method, offered, { dialect: this.dialect, user, schema: this.entry.schema });
    this.setStatus("running");
    this.focusBefore = document.activeElement;
    this.abort = new AbortController();
    this.stop.hidden = false;
    const notes = el("ul", { class: "notes", "aria-label": "Progress and log" });
    card.talk.replaceChildren(notes, this.pieces.element);
    const onNote = (note) => {
      showNote(notes, note);
      this.pieces.take(note);
    };
    const options = { signal: this.abort.signal, onNote };
    const sending = trouble.twice ? [this.client.send(write(), options), this.client.send(write(), { signal: this.abort.signal })] : [this.client.send(write(), options)];
    const [first, second] = await Promise.all(sending);
    this.stop.hidden = true;
    let exchange = first;
    if (trouble.lose && !first.problem) {
      card.again.append(this.dropped(first));
      exchange = await this.client.send(write(), options);
    }
    if (!notes.childElementCount) notes.remove();
    await this.finish(card, exchange, had, write);
    if (trouble.lose && !first.problem) await this.compare(card, first, exchange, had, "The reply was lost, so the page sent the request again.");
    if (second) await this.compare(card, first, second, had, "The request was delivered twice.", true);
  }

  newCard() {
    this.rounds += 1;
    const talk = el("div", { class: "talk" }, el("p", { class: "hint" }, "Waiting for the server…"));
    const wire = el("div", { class: "side-by" });
    const about = el("div", { class: "facts" });
    const again = el("div", { class: "again" });
    const name = newId("round");
    const element = el("li", { class: "round", "aria-labelledby": name },
      el("div", { class: "round-head" }, el("h4", { id: name, tabindex: "-1" }, `Round ${this.rounds}`), about),
      el("div", { class: "columns" }, el("div", {}, talk, again), wire));
    foldWires(this.list);
    this.list.append(element);
    return { element, talk, wire, about, again };
  }

  async finish(card, exchange, had, write) {
    const reply = this.read(exchange);
    card.about.replaceChildren(facts(exchange));
    card.wire.replaceChildren(wireView(exchange));
    const says = el("p", { class: `says ${isBad(reply) ? "bad" : ""}` }, explain(reply, exchange));
    card.talk.append(says);
    if (exchange.lost) card.again.append(this.retryControl(card));
    else if (had.hadState || exchange.status) card.again.append(this.againControls(card, exchange, reply, had, write));
    if (reply.kind === "input") await this.ask(card, reply);
    else if (reply.kind === "task") this.follow(card, reply.task);
    else this.end(card, reply);
  }

  read(exchange) {
    if (exchange.problem || exchange.reply === null) return { kind: "problem" };
    return exchange.error ? { kind: "error", error: exchange.error } : this.dialect.read(exchange.reply.result ?? {});
  }

  async ask(card, reply) {
    this.state = reply.state ?? this.state;
    if (reply.state !== undefined) {
      const opened = await this.client.open(reply.state);
      this.redeemedOnce = opened.held ? opened.held["redeemed once"] === true : null;
      card.wire.append(journalView(opened));
    }
    if (!Object.keys(reply.requests).length) {
      this.handOvers += 1;
      if (this.handOvers > MOST_HAND_OVERS || this.rounds >= MOST_ROUNDS) {
        this.ended = true;
        this.setStatus("given up", "bad");
        this.onEnd({ kind: "problem" });
      } else await this.round(undefined);
      return;
    }
    const questions = questionsView(reply.requests, (answers) => {
      // What is answered now follows in a round of its own.
      this.round(answers);
    }, this.drawForm, this.answers);
    card.talk.append(questions.element);
    this.setStatus("asks", "asks");
    announce("The server asks.");
    this.takeFocus(card, questions);
  }

  /** Whether the person is still here, and has not begun something else. */
  mayTakeFocus() {
    const at = document.activeElement;
    return at === null || at === document.body || at === this.focusBefore || this.element.contains(at);
  }

  takeFocus(card, questions) {
    if (this.mayTakeFocus()) questions.focus();
    card.element.scrollIntoView({ block: "nearest" });
  }

  end(card, reply) {
    const failed = isBad(reply);
    this.ended = true;
    this.setStatus(failed ? "failed" : "done", failed ? "bad" : "good");
    this.delivery.element.hidden = true;
    if (reply.kind === "result") this.pieces.hide();
    if (reply.kind === "result") card.talk.append(el("div", { class: `result ${failed ? "bad" : ""}` }, resultView(reply.result)));
    if (reply.kind === "error" && reply.error.data !== undefined) card.talk.append(el("pre", { class: "boxed" }, JSON.stringify(reply.error.data, null, 2)));
    announce(failed ? "The call failed." : "The call has a result.");
    this.drawPage(card, reply);
    card.element.scrollIntoView({ block: "nearest" });
    this.onEnd(reply);
  }

  follow(card, task) {
    this.setStatus("a task", "asks");
    this.delivery.element.hidden = true;
    this.task = new TaskView(this.client, this.dialect, this.user, task, () => this.mayTakeFocus(), this.drawForm, (reply) => {
      const failed = isBad(reply) || reply.kind === "cancelled";
      this.ended = true;
      this.setStatus(reply.kind === "cancelled" ? "cancelled" : failed ? "failed" : "done", failed ? "bad" : "good");
      announce(failed ? "The task has ended without a result." : "The task has its result.");
      this.drawPage(card, reply);
      this.onEnd(reply);
    });
    card.talk.append(this.task.element);
    card.wire.append(this.task.inside, this.task.wire);
    this.task.onChange = () => this.onStatus();
    this.task.follow();
  }

  /** Draw the page of the tool with its result, as hosts do. */
  drawPage(card, reply) {
    const { tool, params } = this.entry, uri = pageOf(tool);
    if (reply.kind !== "result" || !uri || !this.drawsPages) return;
    this.app = this.pageView(uri);
    card.element.append(this.app.element);
    this.app.showResult(tool, params.arguments, reply.result);
  }

  get drawsPages() {
    return this.client.can.apps && this.dialect.drawsPages;
  }

  pageView(uri) {
    return new AppView(this.client, uri, (tool, args) => this.callForPage(tool, args));
  }

  /** Draw a form by the page that it names. */
  drawForm = (params) => {
    const uri = pageOf(params);
    if (!uri || !this.drawsPages) return null;
    const view = this.pageView(uri);
    return { element: view.element, answered: view.ask(params), close: () => view.close() };
  };

  /** Call a tool for a page, and show the call; its questions are the person's to answer. */
  callForPage(tool, args) {
    const entry = { title: `${tool.title ?? tool.name}, called by the page`, method: "tools/call", params: { name: tool.name, arguments: args }, schema: tool.inputSchema };
    let flow;
    const result = new Promise((resolve, reject) => {
      flow = new Flow(this.client, entry, this.others, { onEnd: (reply) => {
        if (reply.kind === "result") resolve(reply.result);
        else reject(new Refusal(reply.error ?? { message: "The call has no result" }));
      } });
    });
    flow.start();
    return { element: flow.element, result };
  }

  dropped(exchange) {
    return el("div", { class: "dropped" }, el("p", {}, "This reply was lost on its way. The client never saw it:"), facts(exchange), wireView(exchange, { open: false }));
  }

  /** Send a round again that got no reply: the first one, or one with the state and the same answers. */
  retryControl(card) {
    const { answers } = this;
    const again = button("Send it again", () => {
      again.remove();
      this.ended = false;
      this.delivery.element.hidden = false;
      this.round(answers);
    });
    return el("div", { class: "repeat" }, again);
  }

  againControls(card, exchange, reply, had, write) {
    const repeat = async (user, asOther) => {
      const again = await this.client.send(write(user));
      await this.compare(card, exchange, again, { ...had, asOther }, asOther ? `Sent again as ${asOther}.` : "Sent again.", true);
    };
    const controls = [button("Send this request again", () => repeat(this.user, ""), { class: "small quiet" })];
    const others = had.hadState && !this.client.users ? this.others().filter((name) => name !== this.user).slice(0, 3) : [];
    if (others.length) controls.push(el("span", { class: "hint" }, "Try whether this request works for another user:"));
    for (const other of others) controls.push(button(`as ${other}`, () => repeat(other, other), { class: "small quiet" }));
    return el("div", { class: "repeat" }, controls);
  }

  async compare(card, first, second, how, head, shown = false) {
    const [firstReply, secondReply] = [this.read(first), this.read(second)];
    const words = explainAgain(first, second, { ...how, firstReply: first.reply?.result ?? first.error, secondReply: secondReply.kind === "error" ? secondReply : second.reply?.result });
    const bad = secondReply.kind === "error" || secondReply.kind === "problem";
    card.again.append(el("div", { class: "dropped second", role: "status" }, el("p", {}, el("b", {}, head), " ", words), shown ? facts(second) : null,
      shown && !bad && secondReply.kind === "result" && firstReply.kind !== "task" ? resultView(secondReply.result) : null,
      shown ? wireView(second, { open: false }) : null));
  }

  setStatus(text, kind = "") {
    this.status.textContent = text;
    this.status.className = `chip status ${kind}`;
    this.onStatus();
  }
}

function foldWires(within) {
  for (const details of within.querySelectorAll(":is(.wire > details, .journal)[open]")) details.open = false;
}

const LONGEST_SUMMARY = 90; // characters

/** Return what a call was given, in a line. */
export function summaryOf({ name: _, uri, arguments: given = {} }) {
  const text = uri ?? (Object.entries(given).map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join(", ") || "without arguments");
  return text.length > LONGEST_SUMMARY ? `${text.slice(0, LONGEST_SUMMARY)}…` : text;
}

function isBad(reply) {
  return reply.kind === "error" || reply.kind === "problem" || (reply.kind === "result" && reply.result.isError === true);
}

function showNote(list, note) {
  const params = note.params ?? {};
  if (note.method === "notifications/progress") {
    let item = list.querySelector("li.progress");
    if (item === null) {
      item = el("li", { class: "progress" }, el("progress", { "aria-label": "Progress" }), el("span"));
      list.append(item);
    }
    const bar = item.firstElementChild;
    if (typeof params.total === "number" && params.total > 0) {
      bar.max = params.total;
      bar.value = params.progress;
    }
    item.lastElementChild.textContent = ` ${params.message ?? `${params.progress}${params.total ? ` of ${params.total}` : ""}`}`;
  } else if (note.method === "notifications/message") {
    const data = typeof params.data === "string" ? params.data : JSON.stringify(params.data);
    list.append(el("li", {}, chip(params.level ?? "log"), ` ${data}`));
  }
}
