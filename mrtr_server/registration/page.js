// Makes window.mrtr, by which a page calls the tools of its server through the host (MCP Apps, 2026-01-26).
(() => {
  // Of the names of tools, where the application is included.
  const prefix = "__PREFIX__";
  const EVENTS = {
    __proto__: null,
    "tool-input": "input",
    "tool-input-partial": "partial",
    "tool-result": "result",
    "tool-cancelled": "cancelled",
    "host-context-changed": "context",
    "ui/resource-teardown": "teardown",
    // What a handler of it returns is the answer (SEP-3118, a draft).
    "elicitation/create": "question",
  };
  // Makes the outcome of a result that only says what is asked, where a script beside this one can.
  let settled = (result) => result;
  const root = document.documentElement, { style } = root, fonts = document.createElement("style");
  const waiting = {}, handlers = {}, last = {};
  let count = 0, began, host = {}, context = {}, adopt, adopted, sent;
  const adoption = new Promise((done) => (adopt = done));
  const parsed = new Promise((done) =>
    document.readyState === "loading" ? addEventListener("DOMContentLoaded", done) : done());

  const textOf = ({ content = [] }) => content.flatMap(({ text }) => text ?? []).join("\n");
  const valued = (result) => {
    const { structuredContent: value = textOf(result), _meta } = result;
    // 2025-11-25 has objects only, so the server puts other values into one, and says so.
    return { ...result, value: _meta?.["mrtr-server/wrapped"] ? value.result : value };
  };

  // To any origin, since a page can't know its host's. Whom we hear, event.source says.
  const post = (message) => parent.postMessage({ jsonrpc: "2.0", ...message }, "*");

  const request = (method, params, seconds = 60) => new Promise((resolve, reject) => {
    // Of our own kind: those of an official App in the page are numbers.
    const id = "mrtr-" + ++count;
    waiting[id] = ({ error, result }) => {
      if (!error) return resolve(result ?? {});
      const { code, data, message } = error;
      const text = code === -32601 ? `This host does not support ${method}` : message;
      reject(Object.assign(Error(text), { code, data }));
    };
    post({ id, method, params });
    if (seconds) setTimeout(() => reject(Error(`No answer to ${method} in ${seconds} seconds`)), seconds * 1000);
  });

  const ask = async (method, params, seconds) => {
    await begin();
    return checked(await request(method, params, seconds), method);
  };
  const checked = (result, method) => {
    if (!result.isError) return result;
    throw Object.assign(Error(textOf(result) || `The host refused ${method}`), { result: valued(result) });
  };

  const begin = () => (began ??= shake());
  const shake = async () => {
    if (parent === window) throw Error("No host shows this page");
    // An App that connects while the page loads, or now, goes first, and its handshake is enough.
    await parsed;
    await new Promise((done) => setTimeout(done));
    const found = adopted || await Promise.race([adoption, request("ui/initialize", {
      protocolVersion: "2026-01-26",
      appInfo: { name: document.title || "app", version: "1" },
      // All, or a host refuses display().
      appCapabilities: { availableDisplayModes: ["inline", "fullscreen", "pip"], elicitation: handlers.question && {} },
    })]);
    if (adopted) return;
    post({ method: "ui/notifications/initialized", params: {} });
    meet(found);
    for (const each of [root, document.body]) new ResizeObserver(measure).observe(each);
    // Both may be as high as the frame, and do not change with what is in them.
    new MutationObserver(measure).observe(document.body, { attributes: true, childList: true, subtree: true });
  };
  const meet = ({ hostCapabilities = {}, hostContext }) => {
    host = hostCapabilities;
    change(hostContext);
  };

  const change = (changed) => {
    context = { ...context, ...changed };
    const { theme, styles } = context;
    if (!adopted) {
      if (theme) root.dataset.theme = style.colorScheme = theme;
      for (const [name, value] of Object.entries(styles?.variables ?? {}))
        if (name.startsWith("--")) style.setProperty(name, value ?? null);
      fonts.textContent = styles?.css?.fonts ?? "";
      document.head.append(fonts);
    }
    emit("context", context);
  };

  const measure = () => {
    const { height } = style;
    // By itself it may be as high as the frame, and would never shrink.
    style.height = "max-content";
    const size = { width: innerWidth, height: Math.ceil(root.getBoundingClientRect().height) };
    style.height = height;
    if (!adopted && sent !== (sent = JSON.stringify(size)))
      post({ method: "ui/notifications/size-changed", params: size });
  };

  // Soon, so that a handler may use what follows the call of on(). One that fails keeps nothing from the others.
  const run = (handler, value) => Promise.resolve(value).then(handler).catch(reportError);
  const emit = (event, value) => {
    last[event] = value;
    // Or a late handler would hear of what is over.
    if (event === "input") delete last.partial;
    return Promise.all((handlers[event] ?? []).map((each) => run(each, value)));
  };

  addEventListener("message", async ({ source, data }) => {
    if (source !== parent || data?.jsonrpc !== "2.0") return;
    let { id, method, params = {}, result } = data;
    if (method) {
      const event = EVENTS[method.replace("ui/notifications/", "")];
      if (event === "context") change(params);
      else if (event === "result") emit(event, valued(await settled(params, ask)));
      else if (event) [result] = await emit(event, params.arguments ?? params);
      // An App of the page answers by itself; before the handshake nobody knows whether there is one.
      if (id === undefined || !began || adopted) return;
      // A question that no handler answers is drawn by the host.
      if (event === "teardown" || method === "ping") result = {};
      post({ id, ...(result ? { result } : { error: { code: -32601, message: "Method not found" } }) });
    } else if (String(id).startsWith("mrtr-")) {
      waiting[id]?.(data);
      delete waiting[id];
    } else if (result?.hostCapabilities) {
      // An App of the page has begun: the size, the theme and answers to the host are its own. It goes first: a host
      // need take nothing before its ui/notifications/initialized.
      adopted = true;
      meet(result);
      setTimeout(adopt);
    }
  });

  // Without another script there is no App, and nobody who would begin.
  parsed.then(() => document.scripts.length < 2 && begin()).catch(() => {});

  Object.defineProperty(window, "mrtr", { value: Object.freeze({
    get ready() { return begin(); },
    get host() { return host; },
    get context() { return context; },
    set settle(how) { settled = how; },
    name: (name) => prefix + name,
    async call(name, args = {}, { once } = {}) {
      const tool = prefix + name;
      const call = once === undefined
        ? { name: tool, arguments: args }
        // By a tool of the server's own, which has no prefix: hosts pass on nothing but a tool and its arguments.
        : { name: "mrtr_once", arguments: { tool, once, arguments: args } };
      return valued(checked(await settled(await ask("tools/call", call, 0), ask)));
    },
    message: (text) => ask("ui/message", { role: "user", content: [{ type: "text", text }] }),
    tell: (text, structuredContent) =>
      ask("ui/update-model-context", { content: [{ type: "text", text }], structuredContent }),
    open: (url) => ask("ui/open-link", { url }),
    read: (uri) => ask("resources/read", { uri }),
    async display(mode) {
      await begin();
      if (!context.availableDisplayModes?.includes(mode)) throw Error(`This host can't display a page as ${mode}`);
      return (await ask("ui/request-display-mode", { mode })).mode;
    },
    on(event, handler) {
      const known = Object.values(EVENTS);
      if (!known.includes(event)) throw Error(`"${event}" is no event: ${known.join(", ")}`);
      (handlers[event] ??= []).push(handler);
      if (event in last) run(handler, last[event]);
      begin();
    },
  }) });
})();
