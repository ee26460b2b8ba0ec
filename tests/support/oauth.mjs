/**
 * An official TypeScript client with its own OAuth code: node oauth.mjs URL PACKAGE [DOCUMENT].
 *
 * Whoever drives it is the person. A line in is the name of a tool to call, `spoil` for an access token that counts no
 * more, or `keeps` for the tokens that the client keeps. A line out is a `page` to log in at, which is answered by the
 * address that the browser ends at, the `text` of the tool, or the tokens. DOCUMENT is the address of the client's
 * metadata; without it, the client registers.
 */

import { createInterface } from "node:readline";

const [url, name, clientMetadataUrl] = process.argv.slice(2);
const isFirst = name.endsWith("sdk 1");
const load = (path) => import(path);
const { Client, StreamableHTTPClientTransport, UnauthorizedError } = isFirst
  ? {
      ...(await load("@modelcontextprotocol/sdk/client/index.js")),
      ...(await load("@modelcontextprotocol/sdk/client/streamableHttp.js")),
      ...(await load("@modelcontextprotocol/sdk/client/auth.js")),
    }
  : await load("@modelcontextprotocol/client");

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const read = async () => (await lines.next()).value;
const say = (what) => console.log(JSON.stringify(what));

let back, tokens, verifier, registered, discovery;
const authProvider = {
  clientMetadataUrl,
  redirectUrl: "http://127.0.0.1:1/callback",
  clientMetadata: {
    client_name: "tests",
    redirect_uris: ["http://127.0.0.1:1/callback"],
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
    token_endpoint_auth_method: "none",
  },
  clientInformation: () => registered,
  saveClientInformation: (given) => (registered = given),
  tokens: () => tokens,
  saveTokens: (given) => (tokens = given),
  codeVerifier: () => verifier,
  saveCodeVerifier: (given) => (verifier = given),
  discoveryState: () => discovery,
  saveDiscoveryState: (given) => (discovery = given),
  invalidateCredentials: (kind) => {
    if (kind === "all" || kind === "client") registered = undefined;
    if (kind === "all" || kind === "tokens") tokens = undefined;
  },
  redirectToAuthorization: async (page) => {
    say({ page: page.href });
    back = new URL(await read()).searchParams;
  },
};

let client;
async function connect() {
  client = new Client({ name: "tests", version: "1" }, { capabilities: { elicitation: {} } });
  const kind = isFirst ? (await load("@modelcontextprotocol/sdk/types.js")).ElicitRequestSchema : "elicitation/create";
  client.setRequestHandler(kind, async () => ({ action: "accept", content: { name: "Al" } }));
  const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider });
  await client.connect(transport);
  return transport;
}

/** Do something; if it takes a login, finish that as an application does, and do it once more. */
async function loggedIn(work) {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (isFirst && error.code === 403 && tokens.refresh_token) {
        delete tokens.refresh_token; // with one, it refreshes in place of asking for more
        await connect();
        continue;
      }
      const wants = error instanceof UnauthorizedError || error.cause instanceof UnauthorizedError;
      if (!wants || back === undefined) throw error;
      const finishing = new StreamableHTTPClientTransport(new URL(url), { authProvider });
      await finishing.finishAuth(isFirst ? back.get("code") : back);
      back = undefined;
      await connect();
    }
  }
}

for (let line; (line = await read()) !== undefined; ) {
  if (client === undefined) await loggedIn(connect);
  if (line === "spoil") tokens = { ...tokens, access_token: "not-valid-any-more" };
  else if (line === "keeps") say(tokens);
  else say({ text: (await loggedIn(() => client.callTool({ name: line, arguments: {} }))).content[0].text });
}
process.exit(0);
