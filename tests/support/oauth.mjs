/** An official TypeScript client with its own OAuth code: node oauth.mjs URL PACKAGE. A fetch stands for the browser. */

const [url, name] = process.argv.slice(2);
const isFirst = name.endsWith("sdk 1");
const load = (path) => import(path);
const { Client, StreamableHTTPClientTransport, UnauthorizedError } = isFirst
  ? {
      ...(await load("@modelcontextprotocol/sdk/client/index.js")),
      ...(await load("@modelcontextprotocol/sdk/client/streamableHttp.js")),
      ...(await load("@modelcontextprotocol/sdk/client/auth.js")),
    }
  : await load("@modelcontextprotocol/client");

const asked = [];
let code, back, tokens, verifier, registered, discovery;
const authProvider = {
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
  redirectToAuthorization: async (page) => {
    asked.push(page.searchParams.get("scope"));
    page.searchParams.set("user", "alice");
    const response = await fetch(page, { redirect: "manual" });
    if (response.status !== 302) throw new Error(`the browser got a ${response.status} from ${page}`);
    back = new URL(response.headers.get("location")).searchParams;
    code = back.get("code");
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
      if (!wants || code === undefined) throw error;
      const finishing = new StreamableHTTPClientTransport(new URL(url), { authProvider });
      await finishing.finishAuth(isFirst ? code : back);
      code = undefined;
      await connect();
    }
  }
}

await loggedIn(connect);
const call = (tool) => client.callTool({ name: tool, arguments: {} });
const who = (await call("who")).content[0].text;
const saved = (await loggedIn(() => call("save"))).content[0].text;
const before = tokens.access_token;
tokens = { ...tokens, access_token: "not-valid-any-more" };
await loggedIn(() => call("save"));
console.log(JSON.stringify({ who, saved, refreshed: tokens.access_token !== before, asked }));
process.exit(0);
