// A task: followed until it ends, answered and cancelled.
import { button, el } from "./dom.js";
import { explain } from "./explain.js";
import { questionsView } from "./questions.js";
import { resultView } from "./content.js";
import { Pieces } from "./pieces.js";
import { chip, facts, journalView, taskRounds, wireView } from "./wire_view.js";

const ENDED = new Set(["completed", "failed", "cancelled"]);
const FASTEST = 200;
const MOST_FAILURES = 5;

export class TaskView {
  /** @param mayTakeFocus says whether a question may; `drawForm` draws one by its page; `onEnd` gets what the task came to. */
  constructor(client, dialect, user, task, mayTakeFocus, drawForm, onEnd) {
    this.drawForm = drawForm;
    this.mayTakeFocus = mayTakeFocus;
    this.client = client;
    this.dialect = dialect;
    this.user = user;
    this.id = task.taskId;
    this.onEnd = onEnd;
    this.ended = false;
    this.asked = "";
    /** Is told when the task has changed. */
    this.onChange = () => {};
    /** The keys that were answered: what comes late does not ask them again. */
    this.answered = new Set();
    this.pause = task.pollIntervalMs ?? task.pollInterval ?? 1000;
    this.abort = new AbortController();
    this.status = chip(task.status, "status");
    this.message = el("span", { class: "hint" });
    this.cancel = button("Cancel the task", () => this.cancelTask(), { class: "small" });
    this.history = el("ol", { class: "history", "aria-label": "What the task did" });
    this.pieces = new Pieces();
    this.place = el("div", { class: "talk" });
    this.how = el("p", { class: "hint" });
    this.element = el("section", { class: "task", "aria-label": "Task" },
      el("div", { class: "task-head" }, el("b", {}, "Task"), this.status, this.message, this.cancel), this.how, this.history, this.pieces.element, this.place);
    this.sent = el("div", { class: "task-wire" });
    this.seen = el("div", { class: "task-wire" });
    this.wire = el("div", { class: "task-wire" }, this.sent, this.seen);
    this.inside = el("div", { class: "task-wire" });
  }

  /** Follow the task: by notifications where there are some, otherwise by looking now and then. */
  async follow() {
    const { pause } = this;
    if (this.dialect.listen) this.listen();
    else this.how.textContent = `Looks with tasks/get every ${pause} ms, as the server says.`;
    if (this.dialect.askedOf) this.streamPieces();
    let failures = 0;
    while (!this.ended && failures < MOST_FAILURES) {
      const exchange = await this.request(this.dialect.look(this.id));
      if (this.ended) return;
      if (exchange.problem || exchange.error) {
        failures += 1;
        if (exchange.lost) await this.waitForServer();
        else this.message.textContent = exchange.problem || exchange.error.message;
        if (exchange.error) failures = MOST_FAILURES;
      } else {
        failures = 0;
        await this.show(exchange.reply.result.task ?? exchange.reply.result, exchange);
      }
      if (!this.ended) await this.wait(Math.max(FASTEST, this.pause));
    }
    if (!this.ended) this.end({ kind: "problem" });
  }

  /** A task outlives its server's process where the store does: go on when the server is there again. */
  async waitForServer() {
    this.message.textContent = "The page waits for the server.";
    await this.client.back;
    this.message.textContent = "";
    if (this.dialect.listen && !this.ended) this.listen();
  }

  /** Listen to the task's notifications: each shows the task as it is then, and makes the next look unnecessary. */
  async listen() {
    const { method, params } = this.dialect.listen(this.id);
    const exchange = this.client.write(method, params, { dialect: this.dialect, user: this.user });
    this.how.textContent = "Followed live: a stream of subscriptions/listen tells of each change.";
    await this.client.send(exchange, {
      signal: this.abort.signal,
      onNote: (note) => {
        if (note.method === "notifications/tasks" && note.params?.taskId === this.id) this.show(note.params, null, note);
      },
    });
    if (!this.ended && !this.abort.signal.aborted) this.how.textContent = "The stream has ended; the page looks with tasks/get.";
  }

  /** Wait for the result beside looking, to show its pieces as they come. */
  async streamPieces() {
    let state = {};
    while (!this.ended) {
      const { method, params } = this.dialect.askedOf(this.id);
      const exchange = this.client.write(method, { ...params, stream: {}, ...state }, { dialect: this.dialect, user: this.user });
      await this.client.send(exchange, { signal: this.abort.signal, onNote: (note) => this.ended || this.pieces.take(note) });
      const result = exchange.reply?.result;
      if (!result || result.content) return;
      state = result.requestState && !result.inputRequests ? { requestState: result.requestState } : {};
      if (result.inputRequests) await new Promise((resolve) => setTimeout(resolve, Math.max(FASTEST, this.pause)));
    }
  }

  wait(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  request({ method, params }) {
    return this.client.send(this.client.write(method, params, { dialect: this.dialect, user: this.user }));
  }

  async show(task, exchange, note = null) {
    if (this.ended || (task.taskId !== this.id && task.taskId !== undefined)) return;
    // A look and a notification can overtake each other: what is older than what was shown says nothing.
    if (task.lastUpdatedAt < this.updatedAt) return;
    this.updatedAt = task.lastUpdatedAt;
    this.note(task, exchange, note);
    if (ENDED.has(task.status)) await this.finish(task);
    else if (task.status === "input_required") await this.ask(task);
    else if (this.asked) this.clear();
    this.onChange();
  }

  note(task, exchange, note) {
    const line = `${task.status}${task.statusMessage ? `: ${task.statusMessage}` : ""}`;
    this.status.textContent = task.status;
    this.status.className = `chip status ${task.status === "completed" ? "good" : ENDED.has(task.status) ? "bad" : "asks"}`;
    this.message.textContent = task.statusMessage ?? "";
    if (line === this.last) return;
    this.last = line;
    this.lookInside();
    this.history.append(el("li", {}, line));
    if (exchange) this.seen.replaceChildren(el("p", { class: "hint" }, "The last look at the task:"), facts(exchange), wireView(exchange, { open: false }));
    if (note) this.seen.replaceChildren(el("p", { class: "hint" }, "The last notification:"), el("pre", { class: "boxed" }, JSON.stringify(note, null, 2)));
  }

  /** Show what its rounds did and what its journal holds. */
  async lookInside() {
    if (this.client.inside) return;
    const opened = await this.client.openTask(this.id);
    this.inside.replaceChildren(taskRounds(opened), opened.held ? journalView(opened, "Journal of the task") : "");
  }

  async ask(task) {
    let requests = task.inputRequests;
    if (!requests && this.dialect.askedOf) {
      const exchange = await this.request(this.dialect.askedOf(this.id));
      requests = exchange.reply?.result?.inputRequests;
    }
    const open = Object.entries(requests ?? {}).filter(([key]) => !this.answered.has(key));
    const keys = open.map(([key]) => key).sort().join("\n");
    if (this.ended || !keys || keys === this.asked) return;
    this.asked = keys;
    const questions = questionsView(Object.fromEntries(open), (answers) => this.answer(answers), this.drawForm, this.before);
    this.place.replaceChildren(el("p", { class: "says" }, "The task asks. It waits in the store, and uses no worker and no memory meanwhile."), questions.element);
    if (this.mayTakeFocus()) questions.focus();
  }

  clear() {
    this.asked = "";
    this.place.replaceChildren();
  }

  async answer(answers) {
    const { asked } = this;
    this.before = answers;
    for (const key of Object.keys(answers)) this.answered.add(key);
    const exchange = await this.request(this.dialect.answerTask(this.id, answers));
    this.sent.replaceChildren(el("p", { class: "hint" }, "The answer to the task:"), facts(exchange), wireView(exchange));
    if (exchange.error || exchange.problem) {
      this.message.textContent = exchange.error?.message ?? exchange.problem;
      for (const key of Object.keys(answers)) this.answered.delete(key);
      if (this.asked === asked) this.asked = "";
    } else if (!this.ended && this.asked === asked) {
      this.clear();
    }
    this.wake?.();
  }

  async cancelTask() {
    this.cancel.disabled = true;
    const exchange = await this.request(this.dialect.cancelTask(this.id));
    this.sent.replaceChildren(el("p", { class: "hint" }, "The cancellation:"), facts(exchange), wireView(exchange));
    this.wake?.();
  }

  async finish(task) {
    if (this.ended) return;
    this.ended = true;
    let { result, error } = task;
    if (task.status === "completed" && !result && this.dialect.askedOf) {
      const exchange = await this.request(this.dialect.askedOf(this.id));
      this.seen.append(facts(exchange), wireView(exchange, { open: false }));
      ({ result, error } = exchange.reply ?? {});
    }
    this.pieces.hide();
    const reply = task.status === "cancelled" ? { kind: "cancelled" } : error ? { kind: "error", error } : { kind: "result", result: result ?? {} };
    if (reply.kind === "cancelled") this.place.replaceChildren(el("p", { class: "says" }, "The task was cancelled. No step begins after that; one that was running completes."));
    else if (reply.kind === "error") this.place.replaceChildren(el("p", { class: "says bad" }, `The task failed: ${error.message}`));
    else this.place.replaceChildren(el("p", { class: "says" }, explain(reply, { problem: "", report: null }, { ended: true })), el("div", { class: `result ${result?.isError ? "bad" : ""}` }, resultView(result ?? {})));
    this.end(reply);
  }

  end(reply) {
    this.ended = true;
    this.cancel.hidden = true;
    this.leave();
    this.onEnd(reply);
  }

  /** Stop following it. */
  leave() {
    this.ended = true;
    this.abort.abort();
    this.wake?.();
  }
}
