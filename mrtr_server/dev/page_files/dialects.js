// The two versions of the protocol that the page speaks: how requests are written, and what a result means.
import { KINDS } from "./questions.js";

const META = "io.modelcontextprotocol/";
const VERSION = "2026-07-28";
const TASKS = `${META}tasks`;
const UI = `${META}ui`;
const MIME_TYPE = "text/html;profile=mcp-app";
const NAMED_BY = { "tools/call": "name", "prompts/get": "name", "resources/read": "uri", "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId" };

/** Return a value as a header may carry it: anything but plain ASCII in Base64, marked as such. */
export function headerValue(value) {
  const text = String(value);
  if (/^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/.test(text) && !text.startsWith("=?base64?")) return text;
  const bytes = new TextEncoder().encode(text);
  return `=?base64?${btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))}?=`;
}

/** Return the headers that mirror arguments of a tool, by `x-mcp-header` in its schema. */
export function mirrored(schema, value) {
  const headers = {};
  for (const [name, each] of Object.entries(schema?.properties ?? {})) {
    const found = value?.[name];
    if (found === undefined || found === null || each === null || typeof each !== "object") continue;
    if (typeof each["x-mcp-header"] === "string" && typeof found !== "object") headers[`Mcp-Param-${each["x-mcp-header"]}`] = headerValue(found);
    if (typeof found === "object") Object.assign(headers, mirrored(each, found));
  }
  return headers;
}

/** The ratified protocol: each request says what its client can do. */
export const modern = {
  name: VERSION,
  title: "2026-07-28",
  drawsPages: true,
  request(id, method, params, client) {
    const capabilities = {};
    for (const kind of KINDS.filter((each) => client.can[each.name])) {
      kind.capability.reduce((within, name) => (within[name] ??= {}), capabilities);
    }
    const extensions = {};
    if (client.can.tasks || method.startsWith("tasks/")) extensions[TASKS] = {};
    if (client.can.apps) extensions[UI] = { mimeTypes: [MIME_TYPE], ...(client.can.form ? { elicitation: {} } : {}) };
    if (Object.keys(extensions).length) capabilities.extensions = extensions;
    const _meta = {
      [`${META}protocolVersion`]: VERSION,
      [`${META}clientInfo`]: { name: "mrtr-page", version: "1" },
      [`${META}clientCapabilities`]: capabilities,
    };
    if (["tools/call", "prompts/get", "resources/read"].includes(method)) {
      _meta.progressToken = id;
      _meta[`${META}logLevel`] = "debug";
    }
    const headers = { "MCP-Protocol-Version": VERSION, "Mcp-Method": method };
    if (NAMED_BY[method]) headers["Mcp-Name"] = headerValue(params[NAMED_BY[method]]);
    return { headers, body: { jsonrpc: "2.0", id, method, params: { ...params, _meta } } };
  },
  offerTask: (params) => params,
  read(result) {
    if (result.resultType === "input_required") return { kind: "input", requests: result.inputRequests ?? {}, state: result.requestState };
    if (result.resultType === "task") return { kind: "task", task: result };
    return { kind: "result", result };
  },
  look: (id) => ({ method: "tasks/get", params: { taskId: id } }),
  answerTask: (id, inputResponses) => ({ method: "tasks/update", params: { taskId: id, inputResponses } }),
  cancelTask: (id) => ({ method: "tasks/cancel", params: { taskId: id } }),
  listen: (id) => ({ method: "subscriptions/listen", params: { notifications: { taskIds: [id] } } }),
  askedOf: null,
};

/** The drafts: no version, no headers, and results of tasks by a request of their own. */
export const drafts = {
  name: "drafts",
  title: "The drafts (SEP)",
  drawsPages: false,
  request(id, method, params) {
    return { headers: {}, body: { jsonrpc: "2.0", id, method, params } };
  },
  offerTask: (params) => ({ ...params, task: { ttl: 600_000 } }),
  read(result) {
    if (result.task?.taskId) return { kind: "task", task: result.task };
    if (result.inputRequests || (result.requestState && !result.content)) {
      return { kind: "input", requests: result.inputRequests ?? {}, state: result.requestState };
    }
    return { kind: "result", result };
  },
  look: (id) => ({ method: "tasks/get", params: { taskId: id } }),
  answerTask: (id, inputResponses) => ({
    method: "tasks/input_response",
    params: { inputResponses, _meta: { [`${META}related-task`]: { taskId: id } } },
  }),
  cancelTask: (id) => ({ method: "tasks/cancel", params: { taskId: id } }),
  listen: null,
  askedOf: (id) => ({ method: "tasks/result", params: { taskId: id } }),
};

export const dialects = [modern, drafts];
