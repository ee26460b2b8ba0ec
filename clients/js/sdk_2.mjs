/** The official SDK 2: `Client`; the second argument is the mode of its version negotiation. */

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { SUMMARY, fillIn, probe, run } from "./probe.mjs";

await run(async (url) => {
  const mode = process.argv[3];
  const client = new Client(
    { name: "probe", version: "1" },
    { capabilities: { elicitation: {}, sampling: {} }, ...(mode && { versionNegotiation: { mode } }) },
  );
  client.setRequestHandler("elicitation/create", async (request) => ({
    action: "accept",
    content: await fillIn(request.params.requestedSchema),
  }));
  client.setRequestHandler("sampling/createMessage", () => ({
    role: "assistant",
    content: { type: "text", text: SUMMARY },
    model: "constant",
  }));
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  await probe({
    call: (name, given) => client.callTool({ name, arguments: given }),
    tools: () => client.listTools(),
    prompts: () => client.listPrompts(),
    resources: () => client.listResources(),
    elicits: true,
    samples: true,
  });
  await client.close();
});
