/** Mastra: the tools of an `MCPClient`, executed as an agent executes them. */

import { MCPClient } from "@mastra/mcp";
import { fillIn, probe, run } from "./probe.mjs";

await run(async (url) => {
  const inputRequests = async ({ params }) => ({ action: "accept", content: await fillIn(params.requestedSchema) });
  const client = new MCPClient({ servers: { server: { url: new URL(url), inputRequests } } });
  await probe({
    call: async (name, given) => (await client.listTools())[`server_${name}`].execute(given, {}),
    tools: async () => Object.keys(await client.listTools()),
    prompts: () => client.prompts.list(),
    resources: () => client.resources.list(),
    elicits: true,
  });
  await client.disconnect();
});
