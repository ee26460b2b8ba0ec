/** MCP Inspector over stdio: its command line, a process for each request, each of which starts the server. */

import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { probe, run } from "./probe.mjs";

const [program, ...server] = process.argv.slice(3);

await run(async () => {
  const inspect = async (method, ...more) => {
    const command = [program, "--cli", ...server, "--method", method, ...more];
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
