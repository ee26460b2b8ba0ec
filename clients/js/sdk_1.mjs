/** The official SDK 1.x: `Client` over `StreamableHTTPClientTransport`; with the argument `progress`, its timeout is reset. */

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CreateMessageRequestSchema, ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { SUMMARY, fillIn, probe, run } from "./probe.mjs";

await run(async (url) => {
  const client = new Client({ name: "probe", version: "1" }, { capabilities: { elicitation: {}, sampling: {} } });
  client.setRequestHandler(ElicitRequestSchema, async (request) => ({
    action: "accept",
    content: await fillIn(request.params.requestedSchema),
  }));
  client.setRequestHandler(CreateMessageRequestSchema, () => ({
    role: "assistant",
    content: { type: "text", text: SUMMARY },
    model: "constant",
  }));
  const options = process.argv[3] === "progress" ? { onprogress: () => {}, resetTimeoutOnProgress: true } : {};
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  await probe({
    call: (name, given) => client.callTool({ name, arguments: given }, undefined, options),
    tools: () => client.listTools(),
    prompts: () => client.listPrompts(),
    resources: () => client.listResources(),
    elicits: true,
    samples: true,
  });
  await client.close();
});
