/** A real issuer of OpenID Connect: node issuer.mjs PORT CLIENT SECRET REDIRECT...; a person is whoever types a name. */

import Provider from "oidc-provider";

const [port, client_id, client_secret, ...redirect_uris] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clients: [
    {
      client_id,
      client_secret,
      redirect_uris,
      grant_types: ["authorization_code", "refresh_token"],
      response_types: ["code"],
    },
  ],
  claims: { openid: ["sub"], profile: ["name"], email: ["email", "email_verified"] },
  scopes: ["openid", "offline_access", "profile", "email", "files"],
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, name: `${id} of tests`, email: `${id}@example.com`, email_verified: id !== "mallory" }),
  }),
  rotateRefreshToken: true,
  pkce: { required: () => true },
  ttl: { AccessToken: 300, AuthorizationCode: 60, IdToken: 300, RefreshToken: 86400, Interaction: 600, Session: 86400, Grant: 86400 },
  cookies: { keys: ["of-tests"] },
  jwks: undefined,
});
provider.listen(Number(port), "127.0.0.1", () => console.log(`listening at ${issuer}`));
