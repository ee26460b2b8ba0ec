/** MCP Inspector: its command line, a process for each request. The second argument is its program. */

import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { probe, run } from "./probe.mjs";

await run(async (url) => {
  const inspect = async (method, ...more) => {
    const command = [process.argv[3], "--cli", url, "--method", method, ...more];
    try {
      return (await promisify(execFile)(process.execPath, command)).stdout;
    } catch (error) {
      throw new Error(error.stderr || error.stdout || error.message);
    }
  };
  await probe({
    call: (name, given) =>
      inspect("tools/call", "--tool-name", name, "--tool-args-json", JSON.stringify(given)),
    tools: () => inspect("tools/list"),
    prompts: () => inspect("prompts/list"),
    resources: () => inspect("resources/list"),
  });
});
