// What tools, prompts and resources return. All of it is somebody else's: text is shown as text, and data by known types.
import { el, link, prose } from "./dom.js";
import { jsonView } from "./json_view.js";
import { tableOf } from "./records.js";

const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const AUDIO = new Set(["audio/mpeg", "audio/mp3", "audio/wav", "audio/x-wav", "audio/ogg", "audio/webm", "audio/mp4", "audio/flac"]);
const LONGEST = 200_000; // characters of a text that is read as JSON
const BASE64 = /^[A-Za-z0-9+/\s]*={0,2}\s*$/;

export function blocks(content) {
  return el("div", { class: "content" }, (Array.isArray(content) ? content : [content]).map(block));
}

function block(item) {
  if (item === null || typeof item !== "object") return prose(JSON.stringify(item));
  const isData = typeof item.data === "string" && BASE64.test(item.data);
  if (item.type === "text") return textView(item.text ?? "");
  if (item.type === "image" && isData && IMAGES.has(item.mimeType)) {
    return el("img", { src: `data:${item.mimeType};base64,${item.data}`, alt: `Image that was returned, ${item.mimeType}` });
  }
  if (item.type === "audio" && isData && AUDIO.has(item.mimeType)) {
    return el("audio", { controls: true, src: `data:${item.mimeType};base64,${item.data}` });
  }
  if (item.type === "resource_link") {
    return resourceLink(String(item.uri ?? ""), String(item.title ?? item.name ?? item.uri));
  }
  if (item.type === "resource" && item.resource) return resourceContents(item.resource);
  return el("div", {}, el("p", { class: "hint" }, `Content of the type ${item.type ?? "?"} ${item.mimeType ?? ""}`), jsonView(item, "Content"));
}

/** Return a link that reads a resource in this page, and for an address of the web one that opens it, too. */
function resourceLink(uri, name) {
  const read = el("a", { href: hashOf("resource", uri), "data-reads": uri }, `Read ${name}`);
  return el("p", {}, read, " ", /^https?:/i.test(uri) ? link(uri) : el("code", {}, uri));
}

/** Return the fragment that shows an entry. */
export function hashOf(kind, name) {
  return `#${kind}/${encodeURIComponent(name)}`;
}

function textView(text, attributes = {}) {
  const shown = prose(text, attributes);
  const table = tableOf(parsed(text));
  return table ? el("div", {}, table, el("details", {}, el("summary", {}, "As text"), shown)) : shown;
}

/** Return what a text is as JSON; undefined if it is no object or list. */
function parsed(text) {
  if (!/^\s*[[{]/.test(text) || text.length > LONGEST) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export function resourceContents(item) {
  const head = el("p", { class: "hint" }, el("code", {}, item.uri ?? ""), ` ${item.mimeType ?? ""}`);
  if (typeof item.text === "string") return el("div", {}, head, textView(item.text, { class: "prose boxed" }));
  if (typeof item.blob === "string" && BASE64.test(item.blob) && IMAGES.has(item.mimeType)) {
    return el("div", {}, head, el("img", { src: `data:${item.mimeType};base64,${item.blob}`, alt: `Image of ${item.uri}` }));
  }
  return el("div", {}, head, jsonView(item, "Contents"));
}

/** Return a complete result, of whichever method. */
export function resultView(result) {
  const parts = [];
  const { structuredContent: structured } = result;
  const table = structured === undefined ? null : tableOf(structured);
  if (table) parts.push(table);
  // A server repeats what is structured as text, for hosts that take no other.
  if (table && result.content?.length === 1 && parsed(result.content[0]?.text ?? "") !== undefined) parts.push(el("details", {}, el("summary", {}, "As text"), prose(result.content[0].text)));
  else if (Array.isArray(result.content)) parts.push(blocks(result.content));
  if (Array.isArray(result.contents)) parts.push(...result.contents.map(resourceContents));
  for (const message of result.messages ?? []) parts.push(el("div", { class: "message" }, el("b", {}, message.role ?? ""), blocks(message.content)));
  if (structured !== undefined) {
    parts.push(el("details", { open: !table && !result.content?.length }, el("summary", {}, "Structured content"), jsonView(structured, "Structured content")));
  }
  if (!parts.length) parts.push(jsonView(result, "Result"));
  return el("div", {}, parts);
}
