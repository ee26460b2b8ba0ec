// A page of an app as hosts draw it: in a sandbox at another origin, with all that passes between it and its host.
import { AppBridge, Refusal } from "./app_bridge.js";
import { button, el, link, newId, prose } from "./dom.js";
import { jsonView } from "./json_view.js";
import { chip } from "./wire_view.js";

const VERSION = "2026-01-26";
const SANDBOX = "ui/notifications/sandbox-";
const MOST_MESSAGES = 200; // of the traffic that are shown, the last ones
const MOST_DONE = 50; // of what the page did, likewise
const MOST_CALLS = 20; // of the page's, likewise
const PATIENCE = 3000; // milliseconds until a page that is silent is said to be so, and is waited for no more
const HIGHEST = 4000; // pixels
const THEMES = ["as this page", "light", "dark"];
const WIDTHS = ["as wide as it fits", 600, 390, 260];

/** What a host can do for pages, by the names of its capabilities; each can be taken away, since hosts differ. */
export const ABILITIES = {
  serverTools: "Calls tools for pages",
  serverResources: "Reads resources for pages",
  openLinks: "Opens links",
  message: "Takes messages for the chat",
  updateModelContext: "Tells the model",
  meta: "Passes _meta of results on",
};
const VALUES = { message: { text: {} }, updateModelContext: { text: {}, structuredContent: {} } };
const RESOURCES = ["resources/read", "resources/list", "resources/templates/list"];

/** Return the address of the page that draws a tool, or a form; undefined without one. */
export const pageOf = (listed) => listed?._meta?.ui?.resourceUri;

/** Return for whom a tool is: `model`, `app` or both. */
export const visibilityOf = (listed) => listed._meta?.ui?.visibility ?? ["model", "app"];

export class AppView {
  /**
   * @param client reads the page, and says what this host can do.
   * @param uri the page's.
   * @param callTool calls a tool for the page: a function of the tool and the arguments, that returns what shows the call, and the promise of its result.
   */
  constructor(client, uri, callTool) {
    Object.assign(this, { client, uri, callTool });
    this.mode = "inline";
    this.turn = 0; // of drawing: what an earlier one still waits for counts no more
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.scheme.onchange = () => this.change({ theme: this.context().theme });
    this.theme = choice("Theme", THEMES, () => this.change({ theme: this.context().theme }));
    this.width = choice("Width", WIDTHS, () => this.resize());
    this.leave = button("Leave the full screen", () => this.display("inline"), { class: "small", hidden: true });
    this.about = el("div", { class: "facts" });
    this.place = el("div", { class: "app-place" });
    this.done = el("div", { class: "notes", role: "log", "aria-label": "What the page did" });
    this.calls = el("div", { class: "app-calls" });
    this.traffic = el("ol", {});
    this.trafficHead = el("summary", {}, "Traffic with the page");
    this.element = el("section", { class: "app", "aria-label": `Page ${uri}` },
      el("div", { class: "app-head" }, el("b", {}, "Page"), el("code", { class: "key" }, uri), this.about),
      el("div", { class: "app-head" }, this.theme.element, this.width.element,
        button("Draw it again", () => this.draw(), { class: "small" }), this.leave),
      this.place, this.done, this.calls, el("details", { class: "traffic" }, this.trafficHead, this.traffic));
  }

  /** Draw the page for a call of its tool. */
  showResult(tool, args, result) {
    const { _meta, ...rest } = result;
    this.greet = () => {
      this.bridge.notify("ui/notifications/tool-input", { arguments: args });
      this.bridge.notify("ui/notifications/tool-result", this.client.host.meta ? result : rest);
    };
    this.tool = tool;
    return this.draw();
  }

  /** Draw the page for a form; return the person's answer to it. Throws where the page draws no forms (SEP-3118, a draft). */
  ask(params) {
    return new Promise((resolve, reject) => {
      this.greet = () => {
        const { bridge } = this;
        const failed = (error) => bridge === this.bridge && reject(error); // or the page was drawn again
        if (this.page.appCapabilities?.elicitation) bridge.request("elicitation/create", params).then(resolve, failed);
        else reject(new Error("The page draws no forms: it has no handler of mrtr.on(\"question\", …)."));
      };
      this.draw().catch(reject);
    });
  }

  async draw() {
    const closed = this.close();
    const { turn } = this; // before anything is waited for: of two drawings at once, the later one counts
    await closed;
    const exchange = await this.client.send(this.client.write("resources/read", { uri: this.uri }));
    if (turn !== this.turn) return;
    const [content] = exchange.reply?.result?.contents ?? [];
    if (typeof content?.text !== "string") {
      this.place.replaceChildren(el("p", { class: "says bad" }, `The page can't be read: ${exchange.problem || exchange.error?.message || "it has no text."}`));
      return;
    }
    const { csp = {}, permissions = {}, prefersBorder } = content._meta?.ui ?? {};
    this.tellAbout(csp, permissions);
    const { sandbox } = this.client;
    const frame = el("iframe", { sandbox: "allow-scripts", title: `Page ${this.uri}`, class: prefersBorder ? "border" : "", height: 0,
      allow: Object.keys(permissions).map((name) => `${name.replace(/[A-Z]/g, (each) => `-${each.toLowerCase()}`)} *`).join("; ") || null });
    this.frame = frame;
    this.resize();
    this.bridge = new AppBridge(frame, this.requests(), this.notes(() => {
      this.bridge.notify(`${SANDBOX}resource-ready`, { html: content.text, csp, permissions, sandbox: "allow-scripts" });
    }), (by, message) => this.record(by, message));
    frame.src = `${sandbox}?${new URLSearchParams({ csp: JSON.stringify(csp) })}`;
    this.place.replaceChildren(frame);
    const { bridge } = this;
    setTimeout(() => {
      if (this.bridge === bridge && !this.page) this.tell("It has made no handshake yet. Hosts show nothing of such a page; its script may have failed.", "bad");
    }, PATIENCE);
  }

  /** Take the page away, as hosts do: it is told first. */
  async close() {
    this.turn += 1;
    if (!this.bridge) return;
    const { bridge } = this;
    if (this.page) {
      // An error is an answer, too. What the page saves before its answer may be a call of a tool.
      const answered = bridge.request("ui/resource-teardown").then(() => true, () => true);
      if (!(await Promise.race([answered, pause(PATIENCE)]))) this.tell("It has not answered ui/resource-teardown. Hosts do not wait for long: what it would still do is lost.", "bad");
    }
    bridge.close();
    this.bridge = this.page = undefined;
    this.place.replaceChildren();
  }

  requests() {
    const { host } = this.client;
    const only = (ability, requests) => (host[ability] ? requests : {});
    return {
      ping: () => ({}),
      "ui/initialize": (params) => {
        this.page = params;
        return { protocolVersion: VERSION, hostInfo: { name: "mrtr-page", version: "1" }, hostCapabilities: this.capabilities(), hostContext: this.context() };
      },
      "ui/request-display-mode": ({ mode }) => ({ mode: this.display(mode === "fullscreen" ? mode : "inline") }),
      ...only("serverTools", { "tools/call": (params) => this.call(params) }),
      ...only("serverResources", Object.fromEntries(RESOURCES.map((method) => [method, (params) => this.read(method, params)]))),
      ...only("openLinks", { "ui/open-link": ({ url }) => this.open(url) }),
      ...only("message", { "ui/message": ({ content }) => this.tell(["A message for the chat: ", prose(textOf(content))]) }),
      ...only("updateModelContext", { "ui/update-model-context": (params) => this.tell(["For the model's next turn: ", prose(textOf(params.content)), params.structuredContent && jsonView(params.structuredContent, "Structured content")]) }),
    };
  }

  notes(onProxyReady) {
    return {
      [`${SANDBOX}proxy-ready`]: onProxyReady,
      [`${SANDBOX}problem`]: ({ text }) => this.tell(String(text), "bad"),
      "ui/notifications/initialized": () => this.greet(),
      "ui/notifications/size-changed": ({ height }) => {
        if (Number.isFinite(height)) this.frame.height = Math.min(Math.max(0, height), HIGHEST);
      },
      "ui/notifications/request-teardown": () => this.close(),
      "notifications/message": ({ level, data }) => this.tell([chip(level ?? "log"), typeof data === "string" ? data : JSON.stringify(data)]),
    };
  }

  capabilities() {
    const able = Object.keys(ABILITIES).filter((name) => name !== "meta" && this.client.host[name]);
    return { logging: {}, ...(this.client.can.form ? { elicitation: {} } : {}), ...Object.fromEntries(able.map((name) => [name, VALUES[name] ?? {}])) };
  }

  context() {
    const theme = this.theme.value === THEMES[0] ? (this.scheme.matches ? "dark" : "light") : this.theme.value;
    const { locale, timeZone } = Intl.DateTimeFormat().resolvedOptions();
    return {
      theme, locale, timeZone, platform: "web", displayMode: this.mode, availableDisplayModes: ["inline", "fullscreen"],
      containerDimensions: { maxWidth: this.frame.clientWidth, maxHeight: HIGHEST },
      ...(this.tool ? { toolInfo: { tool: this.tool } } : {}),
    };
  }

  change(context) {
    if (this.page) this.bridge.notify("ui/notifications/host-context-changed", context);
  }

  resize() {
    if (!this.frame) return;
    this.frame.style.width = Number(this.width.value) ? `${this.width.value}px` : "";
    this.change({ containerDimensions: this.context().containerDimensions });
  }

  display(mode) {
    this.mode = mode;
    this.leave.hidden = mode === "inline";
    this.element.classList.toggle("full", mode !== "inline");
    this.change({ displayMode: mode });
    return mode;
  }

  async call(params) {
    const tool = this.client.tools.find(({ name }) => name === params.name);
    // A host must hold this; a server can't know who calls.
    if (!tool || !visibilityOf(tool).includes("app")) throw new Refusal({ message: `Pages may not call ${params.name}: ${tool ? "it is for the model alone" : "it is not in the list of tools"}` });
    const { element, result } = this.callTool(tool, params.arguments ?? {});
    this.calls.prepend(element);
    if (this.calls.childElementCount > MOST_CALLS) this.calls.lastElementChild.remove();
    const { _meta, ...rest } = await result;
    return this.client.host.meta && _meta ? { ...rest, _meta } : rest;
  }

  async read(method, params) {
    const { reply, error, problem } = await this.client.send(this.client.write(method, params));
    if (error || problem) throw new Refusal(error ?? { message: problem });
    return reply.result;
  }

  open(url) {
    this.tell(["It opens ", link(url)]);
    if (/^https?:/i.test(url)) window.open(url, "_blank", "noopener");
    return {};
  }

  tell(what, kind = "") {
    this.done.append(el("div", { class: kind }, what));
    if (this.done.childElementCount > MOST_DONE) this.done.firstElementChild.remove();
    return {};
  }

  tellAbout(csp, permissions) {
    const lists = Object.entries(csp).filter(([, origins]) => origins.length);
    this.about.replaceChildren(
      lists.length ? "" : chip("no network"),
      ...lists.map(([name, origins]) => chip(`${name}: ${origins.join(", ")}`)),
      ...Object.keys(permissions).map((name) => chip(name)));
  }

  record(by, message) {
    this.messages = (this.messages ?? 0) + 1;
    this.trafficHead.textContent = `Traffic with the page (${this.messages})`;
    const what = message.method ?? `${message.error ? "error" : "result"} of ${message.id}`;
    const details = el("details", {}, el("summary", {}, chip(by), " ", el("code", {}, what)));
    // Made when somebody looks: a page that draws much says much.
    details.addEventListener("toggle", () => details.append(jsonView(message, `Message of the ${by}`)), { once: true });
    this.traffic.append(el("li", {}, details));
    if (this.traffic.childElementCount > MOST_MESSAGES) this.traffic.firstElementChild.remove();
  }
}

function choice(text, values, onChange) {
  const id = newId("app");
  const select = el("select", { id, on: { change: onChange } }, values.map((value) => el("option", { value }, String(value))));
  return { element: el("span", { class: "choice" }, el("label", { for: id }, text), select), get value() { return select.value; } };
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

const textOf = (content) => [content].flat().map((each) => each?.text ?? JSON.stringify(each)).join("\n");
