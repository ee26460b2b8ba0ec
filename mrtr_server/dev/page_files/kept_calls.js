// What a tab keeps of calls that have ended, so that a reload shows them again: arguments, and the result or error.
// No token, no state of a call, no answer to a question is kept. It goes when the tab is closed.

const NAME = `mrtr-page-calls ${location.pathname}`;
const MOST = 50; // calls, the last ones
const MOST_TEXT = 500_000; // characters of all of them
const LONGEST = 50_000; // characters of one of them; a result that is longer is left out

/** Return the calls that are kept, the newest first. */
export function keptCalls() {
  try {
    const found = JSON.parse(sessionStorage.getItem(NAME) ?? "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return []; // a browser may keep nothing for this page
  }
}

/** Keep a call: {id, hash, title, params, user, at, status, failed, reply}, where reply is {result} or {error}, or nothing. */
export function keepCall(call) {
  const isLong = JSON.stringify(call).length > LONGEST;
  const brief = { ...call, params: {}, reply: {} };
  const kept = isLong ? { ...(JSON.stringify({ ...call, reply: {} }).length > LONGEST ? brief : { ...call, reply: {} }), leftOut: true } : call;
  write([kept, ...keptCalls().filter(({ id }) => id !== call.id)]);
}

/** Keep a call no longer. */
export function forgetCall(id) {
  write(keptCalls().filter((each) => each.id !== id));
}

function write(calls) {
  let [length, count] = [0, 0];
  for (const call of calls.slice(0, MOST)) {
    length += JSON.stringify(call).length;
    if (length > MOST_TEXT) break;
    count += 1;
  }
  try {
    sessionStorage.setItem(NAME, JSON.stringify(calls.slice(0, count)));
  } catch {
    // no room, or no storage: then nothing is kept
  }
}
