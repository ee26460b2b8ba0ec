/** The flow of OAuth 2.1 by npm's oauth4webapi, which checks each response: node oauth_library.mjs ISSUER RESOURCE. */

import * as oauth from "oauth4webapi";
import { createInterface } from "node:readline/promises";

const [issuer, resource] = process.argv.slice(2);
const insecure = { [oauth.allowInsecureRequests]: true };
const redirect = "http://127.0.0.1:7777/callback";
const input = createInterface({ input: process.stdin });
const discovered = await oauth.discoveryRequest(new URL(issuer), { algorithm: "oauth2", ...insecure });
const server = await oauth.processDiscoveryResponse(new URL(issuer), discovered);

const wanted = { redirect_uris: [redirect], client_name: "oauth4webapi", token_endpoint_auth_method: "client_secret_basic" };
const registering = await oauth.dynamicClientRegistrationRequest(server, wanted, insecure);
const client = await oauth.processDynamicClientRegistrationResponse(registering);
const authentication = oauth.ClientSecretBasic(client.client_secret);
const DPoP = oauth.DPoP(client, await oauth.generateKeyPair("ES256"));

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
const back = oauth.validateAuthResponse(server, client, new URL(await input.question("")), "of-library");

/** Ask, and once more with the nonce that the server wants. */
async function asked(ask, read) {
  try {
    return await read(await ask());
  } catch (error) {
    if (!oauth.isDPoPNonceError(error)) throw error;
    return await read(await ask());
  }
}

const more = { DPoP, additionalParameters: { resource }, ...insecure };
const tokens = await asked(
  () => oauth.authorizationCodeGrantRequest(server, client, authentication, back, redirect, verifier, more),
  (response) => oauth.processAuthorizationCodeResponse(server, client, response),
);
const renewed = await asked(
  () => oauth.refreshTokenGrantRequest(server, client, authentication, tokens.refresh_token, more),
  (response) => oauth.processRefreshTokenResponse(server, client, response),
);
const headers = new Headers({ "content-type": "application/json" });
const call = async () => {
  const response = await oauth.protectedResourceRequest(
    renewed.access_token, "POST", new URL(resource), headers, JSON.stringify({}), { DPoP, ...insecure });
  return response.status;
};
const status = await call().catch(async (error) => (oauth.isDPoPNonceError(error) ? await call() : Promise.reject(error)));
const revoked = await oauth.revocationRequest(server, client, authentication, renewed.refresh_token, insecure);
await oauth.processRevocationResponse(revoked);
const ended = await oauth.refreshTokenGrantRequest(server, client, authentication, renewed.refresh_token, more);
const { error } = await ended.json();
console.log(JSON.stringify({ type: renewed.token_type, status, error }));
input.close();
