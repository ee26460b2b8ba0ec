// A request as a command that a shell runs. Tokens are left out: commands end up in histories and in chats.

const OWN = new Set(["Mrtr-Page"]);

/** Return a request as a curl command for a POSIX shell. */
export function curlOf({ headers, body }, endpoint) {
  const address = new URL(endpoint, location.href);
  const sent = Object.entries(headers).filter(([name]) => !OWN.has(name));
  const lines = sent.map(([name, value]) => (name === "Authorization" ? '-H "Authorization: Bearer $TOKEN"' : `-H ${quoted(`${name}: ${value}`)}`));
  if ("Mrtr-Page-User" in headers) lines.push(`-H ${quoted(`Origin: ${address.origin}`)}`, '-H "Mrtr-Page-Token: $PAGE_TOKEN"');
  return [`curl -sSN ${quoted(address.href)}`, ...lines, `--data-raw ${quoted(JSON.stringify(body))}`].join(" \\\n  ") + "\n";
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
