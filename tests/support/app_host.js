// A host of apps in a browser, with the official AppBridge: tests/support/app_host.py drives it, and reads `seen`.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import {
  AppBridge, PostMessageTransport, buildAllowAttribute, getToolUiResourceUri, isToolVisibilityAppOnly,
} from "@modelcontextprotocol/ext-apps/app-bridge";

const seen = { calls: [], messages: [], contexts: [], links: [], sizes: [], modes: [], logs: [], asked: [], wire: [], handshakes: 0 };
let client, tools, manner, bridge, transport, frame, latest, met, initialized, begun;

async function connect(given) {
  manner = given;
  const { capabilities, mode, url, headers, answer } = given;
  client = new Client({ name: "host of the tests", version: "1" }, { capabilities, versionNegotiation: { mode } });
  if (answer) {
    client.setRequestHandler("elicitation/create", async ({ params }) => {
      seen.asked.push(params);
      return answer === "page" ? answerOfPage(params) : answer;
    });
  }
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
  tools = (await client.listTools()).tools;
  return {
    era: client.getNegotiatedProtocolVersion(),
    capabilities: client.getServerCapabilities(),
    tools,
    for_model: tools.filter((tool) => !isToolVisibilityAppOnly(tool)).map((tool) => tool.name),
  };
}

const call = (name, args) => client.callTool({ name, arguments: args });

// Begin a call while the person looks at pages; its end is what `finished` waits for.
function begin(name, args) {
  begun = call(name, args);
  begun.catch(() => {});
}

// Draw a form by the page that it names; its answer is the page's (SEP-3118, a draft, as Inspector 2 does it).
async function answerOfPage(params) {
  const start = seen.wire.length;
  await draw(params._meta.ui.resourceUri, {});
  await initialized;
  const [{ params: me }] = seen.wire.slice(start).filter(({ method }) => method === "ui/initialize");
  if (!me.appCapabilities.elicitation) throw new Error("The page does not draw forms");
  return request("elicitation/create", params);
}

// Draw the page of a tool; what it gets of the call follows when it says that it is ready.
async function mount(name, args, result, before = "") {
  latest = [name, args, result, before];
  const tool = tools.find((each) => each.name === name);
  const uri = getToolUiResourceUri(tool);
  if (!uri) return false;
  await draw(uri, { tool, args, result, before });
  return true;
}

async function draw(uri, { tool, args, result, before = "" }) {
  await unmount();
  const [content] = (await client.readResource({ uri })).contents;
  const { csp, permissions } = content._meta?.ui ?? {};
  frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts allow-same-origin";
  frame.width = manner.width;
  frame.height = 0;
  frame.allow = buildAllowAttribute(permissions);
  const query = new URLSearchParams({ csp: JSON.stringify(csp ?? null) });
  const proxy = new Promise((done) => {
    addEventListener("message", function ready({ source, data }) {
      if (source !== frame.contentWindow || data?.method !== "ui/notifications/sandbox-proxy-ready") return;
      removeEventListener("message", ready);
      done();
    });
  });
  frame.src = `${manner.sandbox}?${query}`;
  document.body.append(frame);
  await proxy;
  await meet(tool, args, result);
  await bridge.sendSandboxResourceReady({ html: before + content.text, csp, permissions, sandbox: manner.inner });
}

async function meet(tool, args, result) {
  const capabilities = { ...manner.host_capabilities, ...(tool ? {} : { elicitation: {} }) };
  bridge = new AppBridge(client, { name: "host of the tests", version: "1" }, capabilities, {
    hostContext: { ...manner.context, ...(tool && { toolInfo: { id: 1, tool } }) },
  });
  let ready;
  initialized = new Promise((done) => (ready = done));
  transport = new PostMessageTransport(frame.contentWindow, frame.contentWindow);
  const send = transport.send.bind(transport);
  transport.send = (message, options) => {
    seen.wire.push({ from: "host", ...message });
    return send(message, options);
  };
  bridge.oninitialized = () => {
    seen.handshakes += 1;
    met = true;
    ready();
    if (!tool) return;
    bridge.sendToolInput({ arguments: args });
    if (result) bridge.sendToolResult(manner.drops.includes("result") ? without_meta(result) : result);
  };
  bridge.onsizechange = (size) => {
    seen.sizes.push(size);
    frame.height = size.height;
  };
  bridge.onloggingmessage = (params) => seen.logs.push(params);
  await bridge.connect(transport);
  const provided = { serverTools: ["tools/call"], serverResources: ["resources/read"] };
  const through = bridge.oncalltool;
  if (has("serverTools")) {
    bridge.oncalltool = async (params, extra) => {
      seen.calls.push(params);
      const called = tools.find((each) => each.name === params.name);
      if (!(called?._meta?.ui?.visibility ?? ["model", "app"]).includes("app")) throw new Error("It is not for apps");
      const result = await through(params, extra);
      return manner.drops.includes("calls") ? without_meta(result) : result;
    };
  }
  for (const [capability, methods] of Object.entries(provided)) {
    if (!has(capability)) methods.forEach((method) => bridge.removeRequestHandler(method));
  }
  const record = (list, result) => async (params) => {
    seen[list].push(params);
    return result(params);
  };
  const refusal = () => (manner.refuses ? { isError: true } : {});
  if (has("message")) bridge.onmessage = record("messages", refusal);
  if (has("openLinks")) bridge.onopenlink = record("links", refusal);
  if (has("updateModelContext")) bridge.onupdatemodelcontext = record("contexts", () => ({}));
  bridge.onrequestdisplaymode = record("modes", ({ mode }) => ({ mode }));
}

const has = (capability) => capability in manner.host_capabilities;
const without_meta = ({ _meta, ...rest }) => rest;

async function unmount() {
  await bridge?.close();
  frame?.remove();
  frame = bridge = met = undefined;
}

addEventListener("message", ({ source, data }) => {
  if (frame && source === frame.contentWindow) seen.wire.push({ from: "page", ...data });
});

const anything = { "~standard": { version: 1, vendor: "tests", validate: (value) => ({ value }) } };
const request = (method, params) => bridge.request({ method, params }, anything);

window.host = {
  seen, connect, call, begin, mount, request,
  finished: () => begun,
  get current() { return bridge; }, // the AppBridge itself
  get met() { return met === true; },
  reload: () => mount(...latest),
  bridge: (method, ...given) => bridge[method](...given),
};
