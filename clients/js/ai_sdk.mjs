/** AI SDK 1 and 2: the tools of `createMCPClient`, executed as the AI SDK executes them. */

import { ElicitationRequestSchema, createMCPClient } from "@ai-sdk/mcp";
import { fillIn, probe, run } from "./probe.mjs";

await run(async (url) => {
  const client = await createMCPClient({ transport: { type: "http", url }, capabilities: { elicitation: {} } });
  client.onElicitationRequest(ElicitationRequestSchema, async (request) => ({
    action: "accept",
    content: await fillIn(request.params.requestedSchema),
  }));
  await probe({
    call: async (name, given) => (await client.tools())[name].execute(given, { messages: [], toolCallId: "1" }),
    tools: async () => Object.keys(await client.tools()),
    prompts: () => (client.listPrompts ? client.listPrompts() : client.experimental_listPrompts()),
    resources: () => client.listResources(),
    elicits: true,
  });
  await client.close();
});
