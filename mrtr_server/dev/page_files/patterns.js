// Patterns of schemas, as far as a browser can tell. The server checks every one; it writes them for another engine.

const LONGEST = 200; // characters of a pattern, and of a text, that are compared here
const MOST_QUANTIFIERS = 3; // that take a varying number of characters: each makes a comparison longer by a factor
const CLASSES = /\\[dwsb]/i; // which characters they are is ASCII here, and Unicode in other engines

/** Return whether a text surely does not fit a pattern. What this engine reads otherwise, or may take long for, is left to the server. */
export function misses(pattern, text) {
  if (typeof pattern !== "string" || pattern.length > LONGEST || text.length > LONGEST || mayTakeLong(pattern)) return false;
  if (CLASSES.test(pattern) && /[^\x20-\x7e]/.test(text)) return false;
  try {
    return !new RegExp(pattern, "u").test(text);
  } catch {
    return false;
  }
}

function mayTakeLong(pattern) {
  const plain = pattern.replace(/\\./g, "e").replace(/\[\^?\]?[^\]]*\]/g, "c");
  const count = plain.match(/[*+]|(?<!\()\?|\{\d+,\d*\}/g)?.length ?? 0;
  const repeatsGroups = /\)[*+{]/.test(plain);
  return count > MOST_QUANTIFIERS || /\(\?[=!<]/.test(plain) || (repeatsGroups && (plain.includes("|") || plain.match(/[*+{]|(?<!\()\?/g).length > 1));
}
