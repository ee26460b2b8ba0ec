// JSON as people read it: indented, with long values shortened.
import { copyButton, el } from "./dom.js";

const LONGEST = 300;
const STATES = new Set(["requestState"]);

/** Return a value as indented JSON. What only a machine reads is shortened, unless `whole`. */
export function pretty(value, whole = false) {
  return JSON.stringify(value, whole ? null : shortened, 2) ?? "";
}

function shortened(name, value) {
  if (typeof value !== "string") return value;
  const longest = STATES.has(name) ? 24 : LONGEST;
  if (value.length <= longest) return value;
  return `${value.slice(0, STATES.has(name) ? 16 : longest)}… (${value.length.toLocaleString("en")} characters)`;
}

/** Return an element that shows JSON, with a button to copy all of it. */
export function jsonView(value, label) {
  const copy = copyButton("Copy", `Copy ${label}`, () => pretty(value, true), { class: "small quiet copy" });
  return el("div", { class: "json" }, copy, el("pre", { tabindex: "0", role: "region", "aria-label": label }, pretty(value)));
}
