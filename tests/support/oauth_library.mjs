/**
 * The flow of OAuth 2.1 by npm's oauth4webapi, which checks each response, and what has to be refused.
 *
 *     node oauth_library.mjs ISSUER RESOURCE
 *
 * It prints pages, and reads where the browser ends; its last line says how it went.
 */

import * as oauth from "oauth4webapi";
import { createInterface } from "node:readline/promises";

const [issuer, resource] = process.argv.slice(2);
const insecure = { [oauth.allowInsecureRequests]: true };
const redirect = "http://127.0.0.1:7777/callback";
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const discovered = await oauth.discoveryRequest(new URL(issuer), { algorithm: "oauth2", ...insecure });
const server = await oauth.processDiscoveryResponse(new URL(issuer), discovered);

/** Register a client; return it, and how it authenticates. */
async function registered(name) {
  const wanted = { redirect_uris: [redirect], client_name: name, token_endpoint_auth_method: "client_secret_basic" };
  const client = await oauth.processDynamicClientRegistrationResponse(
    await oauth.dynamicClientRegistrationRequest(server, wanted, insecure),
  );
  return [client, oauth.ClientSecretBasic(client.client_secret)];
}

const [client, authentication] = await registered("oauth4webapi");
const DPoP = oauth.DPoP(client, await oauth.generateKeyPair("ES256"));

/** Let the person log in; return the parameters of the way back, and the verifier. */
async function loggedIn() {
  const verifier = oauth.generateRandomCodeVerifier();
  const page = new URL(server.authorization_endpoint);
  page.search = new URLSearchParams({
    client_id: client.client_id,
    redirect_uri: redirect,
    response_type: "code",
    resource,
    state: "of-library",
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
    code_challenge_method: "S256",
  });
  console.log(page.href);
  const { value: location } = await lines.next();
  return [oauth.validateAuthResponse(server, client, new URL(location), "of-library"), verifier];
}

/** Ask, and once more with the nonce that the server wants. */
async function asked(ask, read) {
  try {
    return await read(await ask());
  } catch (error) {
    if (!oauth.isDPoPNonceError(error)) throw error;
    return await read(await ask());
  }
}

const more = { additionalParameters: { resource }, ...insecure };
const bound = { ...more, DPoP };
const redeem = (back, verifier, { at = redirect, by = client, as = authentication, given = more } = {}) =>
  oauth.authorizationCodeGrantRequest(server, by, as, back, at, verifier, given);
const refresh = (token, { by = client, as = authentication, given = more } = {}) =>
  oauth.refreshTokenGrantRequest(server, by, as, token, given);
const codeTokens = (response) => oauth.processAuthorizationCodeResponse(server, client, response);
const newTokens = (response) => oauth.processRefreshTokenResponse(server, client, response);
const headers = new Headers({ "content-type": "application/json" });
const called = async (token, given) => {
  const body = JSON.stringify({});
  return (await oauth.protectedResourceRequest(token, "POST", new URL(resource), headers, body, given)).status;
};

// What has to work, with tokens that are bound to a key.
const [back, verifier] = await loggedIn();
const tokens = await asked(() => redeem(back, verifier, { given: bound }), codeTokens);
const renewed = await asked(() => refresh(tokens.refresh_token, { given: bound }), newTokens);
const status = await asked(() => called(renewed.access_token, { DPoP, ...insecure }), (status) => status);

// What has to be refused.
const refused = {};
const note = async (what, request) => {
  const response = await request;
  refused[what] = response.ok ? "nothing" : (await response.json()).error;
};
const thief = oauth.DPoP(client, await oauth.generateKeyPair("ES256"));
refused["a token with another key"] = await asked(
  () => called(renewed.access_token, { DPoP: thief, ...insecure }),
  (status) => status,
).catch((error) => error.cause?.[0]?.parameters?.error);
const revoked = await oauth.revocationRequest(server, client, authentication, renewed.refresh_token, insecure);
await oauth.processRevocationResponse(revoked);
await note("a login that was revoked", refresh(renewed.refresh_token, { given: bound }));

const [second, secret] = await loggedIn();
const [other, otherAuthentication] = await registered("another");
await note("another verifier", redeem(second, oauth.generateRandomCodeVerifier()));
await note("another redirect", redeem(second, secret, { at: `${redirect}/more` }));
await note("a code of another client", redeem(second, secret, { by: other, as: otherAuthentication }));
await note("another secret", redeem(second, secret, { as: oauth.ClientSecretBasic("guessed") }));
const elsewhere = { ...more, additionalParameters: { resource: "https://elsewhere.example/mcp" } };
await note("another resource", redeem(second, secret, { given: elsewhere }));
const first = await codeTokens(await redeem(second, secret)); // none of these used it up
await note("a refresh by another client", refresh(first.refresh_token, { by: other, as: otherAuthentication }));
const wider = { ...more, additionalParameters: { resource, scope: "notes:write" } };
await note("a scope that was not allowed", refresh(first.refresh_token, { given: wider }));
await note("an access token in place of a refresh token", refresh(first.access_token));
const used = { username: "ann", password: "secret" };
const generic = oauth.genericTokenEndpointRequest(server, client, authentication, "password", used, insecure);
await note("a password", generic);
const next = await newTokens(await refresh(first.refresh_token));
const last = await newTokens(await refresh(next.refresh_token));
await note("a refresh token that was used", refresh(first.refresh_token));
await note("the login that it was of", refresh(last.refresh_token));

const [third, again] = await loggedIn();
const once = await codeTokens(await redeem(third, again));
await note("a code that was used", redeem(third, again));
await note("the login that it began", refresh(once.refresh_token));
console.log(JSON.stringify({ type: renewed.token_type, status, refused }));
process.exit(0);
