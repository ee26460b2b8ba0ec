/** Events with the AI SDK, whose own handler checks each message: node ai_sdk_events.mjs URL TOKEN PORT DECLARES. */

import { createServer } from "node:http";
import { createMCPClient, experimental_createMCPEventWebhook as createWebhook } from "@ai-sdk/mcp";

const [url, token, port, declares] = process.argv.slice(2);
const capabilities = declares === "declares" ? { extensions: { "io.modelcontextprotocol/events": {} } } : {};

const kept = new Map();
const store = {
  get: async (key) => kept.get(key),
  getById: async (id) => [...kept.values()].find((each) => each.id === id),
  set: async (subscription) => void kept.set(subscription.key, subscription),
  update: async (key, patch) => kept.has(key) && void kept.set(key, { ...kept.get(key), ...patch }),
  delete: async (key) => void kept.delete(key),
};

const events = [];
const statuses = [];
const ended = [];
let failures = 1;
const webhook = createWebhook({
  store,
  onEvent: async ({ event, subscription }) => {
    if (failures > 0) {
      failures -= 1;
      throw new Error("not now");
    }
    events.push({ id: event.eventId, data: event.data, arguments: subscription.arguments, cursor: event.cursor });
  },
  onTerminated: async ({ termination }) => void ended.push(termination.error.code),
});
const receiver = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const headers = new Headers(request.headers);
  const body = Buffer.concat(chunks);
  const answer = request.url.startsWith("/silent")
    ? new Response("{}")
    : await webhook(new Request(`http://127.0.0.1:${port}${request.url}`, { method: "POST", headers, body }));
  statuses.push(answer.status);
  response.writeHead(answer.status, Object.fromEntries(answer.headers));
  response.end(Buffer.from(await answer.arrayBuffer()));
});
await new Promise((resolve) => receiver.listen(Number(port), "127.0.0.1", resolve));

const until = async (isTrue, what) => {
  for (let waited = 0; !isTrue(); waited += 20) {
    if (waited > 30_000) throw new Error(`waited for ${what}: ${JSON.stringify({ events, statuses, ended })}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
};
const code = async (work) => {
  try {
    await work();
  } catch (error) {
    return [error.code, error.data ?? null];
  }
  return null;
};

const transport = { type: "http", url, headers: { Authorization: `Bearer ${token}` } };
const client = await createMCPClient({ transport, capabilities, experimental_events: { store } });
const tools = await client.tools();
const run = (name, given) => tools[name].execute(given, { messages: [], toolCallId: "1" });
const delivery = (path) => ({
  mode: "webhook",
  url: `http://127.0.0.1:${port}/${path}`,
  allowInsecureLocalhost: true,
});
const subscribe = (path, given = {}) =>
  client.experimental_events.subscribe({ name: "incident.created", arguments: given, delivery: delivery(path) });

const listed = await client.experimental_events.list();
const subscribed = await subscribe("hook", { severity: "P1" });
await run("open_incident", { id: "1", severity: "P1" });
await run("open_incident", { id: "2", severity: "P2" });
await until(() => events.length === 1, "the event, tried a second time");

const refreshed = await client.experimental_events.refresh({ id: subscribed.id });
await run("open_incident", { id: "3", severity: "P1" });
await until(() => events.length === 2, "an event after a refresh");

const [former] = kept.values();
await client.experimental_events.unsubscribe({ id: subscribed.id });
kept.set(former.key, former);
const again = await code(() => client.experimental_events.unsubscribe({ key: former.key }));
kept.delete(former.key);
await run("open_incident", { id: "4", severity: "P1" });

const unverified = await code(() => subscribe("silent"));
const unfit = await code(() => subscribe("hook", { severity: "P9" }));
kept.clear();

await subscribe("hook");
await run("revoke", {});
await run("open_incident", { id: "5", severity: "P1" });
await until(() => ended.length === 1, "the end of access");

await client.close();
receiver.close();
receiver.closeAllConnections();
console.log(
  JSON.stringify({
    listed: listed.events.map((each) => [each.name, each.delivery]),
    events: events.map((each) => [each.id, each.data, each.arguments, typeof each.cursor]),
    statuses,
    same: subscribed.id === refreshed.id,
    truncated: [subscribed.truncated, refreshed.truncated],
    again,
    unverified,
    unfit,
    ended,
    left: kept.size,
  }),
);
