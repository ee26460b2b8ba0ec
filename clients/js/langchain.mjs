/** LangChain.js: the tools of a `MultiServerMCPClient`. */

import { MultiServerMCPClient } from "@langchain/mcp-adapters";
import { probe, run } from "./probe.mjs";

await run(async (url) => {
  const client = new MultiServerMCPClient({ mcpServers: { server: { url } } });
  await probe({
    call: async (name, given) => (await client.getTools()).find((tool) => tool.name === name).invoke(given),
    tools: async () => (await client.getTools()).map((tool) => tool.name),
    resources: () => client.listResources(),
  });
  await client.close();
});
