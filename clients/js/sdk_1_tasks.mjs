/** The experimental tasks of the official SDK 1.x: `client.experimental.tasks`. Prints one line of JSON with what it found. */

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema, CreateMessageRequestSchema, ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { SUMMARY, fillIn } from "./probe.mjs";

const client = new Client({ name: "tasks", version: "1" }, { capabilities: { elicitation: {}, sampling: {} } });
client.setRequestHandler(ElicitRequestSchema, async (request) => ({
  action: "accept",
  content: await fillIn(request.params.requestedSchema),
}));
client.setRequestHandler(CreateMessageRequestSchema, () => ({
  role: "assistant",
  content: { type: "text", text: SUMMARY },
  model: "constant",
}));
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
const { tasks } = client.experimental;

/** Call a tool as the SDK does by itself when the tool has tasks. */
async function follow(name, given = {}) {
  const seen = { statuses: [] };
  for await (const message of tasks.callToolStream({ name, arguments: given }, CallToolResultSchema, { task: { ttl: 60000 } })) {
    if (message.type === "taskCreated") seen.began = message.task.status;
    if (message.type === "taskStatus") seen.statuses.push(message.task.status);
    if (message.type === "result") seen.text = message.result.content[0].text;
    if (message.type === "error") seen.error = message.error.message;
    seen.task = message.task?.taskId ?? seen.task;
  }
  seen.ended = (await tasks.getTask(seen.task)).status;
  return { began: seen.began, asked: seen.statuses.includes("input_required"), ended: seen.ended, text: seen.text, error: seen.error };
}

/** Return the code of the error that something ends with; 0 for none. */
const codeOf = (work) => work.then(() => 0, (error) => error.code);

const listed = await client.listTools();
const found = { declared: client.getServerCapabilities().tasks !== undefined };
found.support = Object.fromEntries(listed.tools.map((tool) => [tool.name, tool.execution?.taskSupport]));
found.greet = await follow("greet");
found.say_hello = await follow("say_hello");
found.fail = await follow("fail");
found.listed = (await tasks.listTasks()).tasks.length;
const stream = tasks.callToolStream({ name: "greet", arguments: {} }, CallToolResultSchema, { task: {} });
const { value } = await stream.next();
const waits = value.task.taskId;
found.cancelled = (await tasks.cancelTask(waits)).status;
found.codes = {
  "cancelled again": await codeOf(tasks.cancelTask(waits)),
  unknown: await codeOf(tasks.getTask("unknown")),
};
await stream.return();
console.log(JSON.stringify(found));
await client.close();
