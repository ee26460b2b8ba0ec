/**
 * The same tools on the official SDK for TypeScript, under Node: `node typescript.mjs PORT [fastest]`.
 *
 * As it comes, a server is made for each request, as the SDK's guide to HTTP shows. With `fastest`, responses are JSON
 * alone, and clients of 2025 are refused. State is signed (HMAC-SHA256): the SDK has nothing that encrypts it.
 */

import { createServer } from "node:http";
import { randomBytes } from "node:crypto";
import { toNodeHandler } from "@modelcontextprotocol/node";
import {
  McpServer,
  acceptedContent,
  createMcpHandler,
  createRequestStateCodec,
  inputRequired,
} from "@modelcontextprotocol/server";
import { z } from "zod";

const [port, form] = process.argv.slice(2);
const codec = createRequestStateCodec({ key: randomBytes(32) });
const pair = z.object({ a: z.number().int(), b: z.number().int() });
const place = z.object({ location: z.string() });
const login = z.object({ name: z.string() });
const text = (value) => ({ content: [{ type: "text", text: value }] });

function makeServer() {
  const server = new McpServer({ name: "bench", version: "1" }, { requestState: { verify: codec.verify } });
  server.registerTool("add", { inputSchema: pair }, async ({ a, b }) => text(String(a + b)));
  server.registerTool("add_sync", { inputSchema: pair }, ({ a, b }) => text(String(a + b)));
  server.registerTool("get_weather", { inputSchema: place }, async ({ location }, ctx) => {
    const answer = acceptedContent(ctx.mcpReq.inputResponses, "github_login", login);
    if (answer === undefined) {
      return inputRequired({
        inputRequests: {
          github_login: inputRequired.elicit({
            message: "Please provide your GitHub username",
            requestedSchema: { type: "object", properties: { name: { type: "string" } }, required: ["name"] },
          }),
        },
        requestState: await codec.mint("asked", ctx),
      });
    }
    return text(`Current weather in ${location} for ${answer.name}: 72 degrees, partly cloudy`);
  });
  return server;
}

const options = form === "fastest" ? { responseMode: "json", legacy: "reject" } : {};
createServer(toNodeHandler(createMcpHandler(makeServer, options))).listen(Number(port), "127.0.0.1");
