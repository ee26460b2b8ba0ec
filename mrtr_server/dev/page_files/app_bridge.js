// The host's side of the page of an app (MCP Apps, 2026-01-26): messages to its frame, and from it.

const NO_METHOD = -32601;
const FAILED = -32603;

/** Thrown where a page gets an error of the protocol for its request. */
export class Refusal extends Error {
  constructor({ code = FAILED, message, data }) {
    super(message);
    this.error = { code, message, ...(data === undefined ? {} : { data }) };
  }
}

export class AppBridge {
  /**
   * Speak with the page in a frame, until `close`.
   *
   * @param requests what answers the page's requests, by method: a function of the parameters, that returns the result.
   * @param notes what hears its notifications, by method.
   * @param onMessage is told of each message: who sent it, `host` or `page`, and the message.
   */
  constructor(frame, requests, notes, onMessage) {
    Object.assign(this, { frame, requests, notes, onMessage });
    this.count = 0;
    this.waiting = new Map();
    this.listener = (event) => this.take(event);
    addEventListener("message", this.listener);
  }

  send(message) {
    const whole = { jsonrpc: "2.0", ...message };
    this.onMessage("host", whole);
    // To any origin: the sandbox has none. Whom we hear, event.source says.
    this.frame.contentWindow?.postMessage(whole, "*");
  }

  notify(method, params = {}) {
    this.send({ method, params });
  }

  /** Send a request; return its result. Throws a `Refusal`. */
  request(method, params = {}) {
    this.count += 1;
    const id = this.count;
    const answered = new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
    this.send({ id, method, params });
    return answered;
  }

  async take({ source, data }) {
    if (source !== this.frame.contentWindow || data?.jsonrpc !== "2.0") return;
    this.onMessage("page", data);
    const { id, method, params = {}, result, error } = data;
    if (method === undefined) {
      const waiting = this.waiting.get(id);
      this.waiting.delete(id);
      if (error) waiting?.reject(new Refusal(error));
      else waiting?.resolve(result);
    } else if (id === undefined) {
      this.notes[method]?.(params);
    } else {
      this.send({ id, ...(await this.answer(method, params)) });
    }
  }

  async answer(method, params) {
    if (!Object.hasOwn(this.requests, method)) return { error: { code: NO_METHOD, message: `This host does not support ${method}` } };
    try {
      return { result: await this.requests[method](params) };
    } catch (reason) {
      return { error: (reason instanceof Refusal ? reason : new Refusal({ message: reason.message })).error };
    }
  }

  close() {
    removeEventListener("message", this.listener);
    for (const { reject } of this.waiting.values()) reject(new Refusal({ message: "The page is gone" }));
    this.waiting.clear();
  }
}
