// A host of apps in a browser, with React and @mcp-ui/client: driven as app_host.js is, by tests/support/app_host.py.
import { AppRenderer } from "@mcp-ui/client";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { createElement } from "react";
import { createRoot } from "react-dom/client";

const seen = { calls: [], messages: [], sizes: [], asked: [], errors: [] };
let client, tools, manner, root, met;

async function connect(given) {
  manner = given;
  client = new Client({ name: "host of the tests", version: "1" }, { capabilities: given.capabilities });
  if (given.answer) {
    client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
      seen.asked.push(params);
      return given.answer;
    });
  }
  const transport = new StreamableHTTPClientTransport(new URL(given.url));
  await client.connect(transport);
  tools = (await client.listTools()).tools;
  const isForModel = ({ _meta }) => (_meta?.ui?.visibility ?? ["model"]).includes("model");
  return {
    era: transport.protocolVersion,
    capabilities: client.getServerCapabilities(),
    tools,
    for_model: tools.filter(isForModel).map(({ name }) => name),
  };
}

const call = (name, args) => client.callTool({ name, arguments: args });

async function mount(name, args, result) {
  const uri = tools.find((each) => each.name === name)._meta?.ui?.resourceUri;
  if (!uri) return false;
  const [content] = (await client.readResource({ uri })).contents;
  met = false;
  root?.unmount();
  root = createRoot(document.body.appendChild(document.createElement("div")));
  root.render(createElement(AppRenderer, {
    client, toolName: name, toolInput: args, toolResult: result, toolResourceUri: uri,
    sandbox: { url: new URL(manner.sandbox), csp: content._meta?.ui?.csp ?? {} },
    onCallTool: (params) => {
      seen.calls.push(params);
      return client.callTool(params);
    },
    onMessage: async (params) => {
      seen.messages.push(params);
      return {};
    },
    onSizeChanged: (size) => {
      seen.sizes.push(size);
      met = true; // of the handshake it tells nothing
    },
    onError: (error) => seen.errors.push(String(error)),
  }));
  return true;
}

window.host = { seen, connect, call, mount, get met() { return met === true; } };
