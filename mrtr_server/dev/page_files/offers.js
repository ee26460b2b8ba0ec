// The list of what a server offers, with its filter. In a narrow window a button opens it.
import { hashOf } from "./content.js";
import { el } from "./dom.js";

const GROUPS = [["tool", "Tools"], ["prompt", "Prompts"], ["resource", "Resources"], ["template", "Resource templates"]];
const WORDS = { tool: "tool", prompt: "prompt", resource: "resource", template: "resource template" };

export function entryOf(kind, name, listed) {
  return { kind, name, listed, hash: hashOf(kind, name) };
}

/** Return what an entry is called on the page. */
export const titleOf = ({ name, listed }) => listed.title ?? listed.name ?? name;

export class Offers {
  /** @param places the elements: `list`, `filter`, and `opener`, the button. */
  constructor({ list, filter, opener }) {
    Object.assign(this, { list, filter, opener });
    this.entries = [];
    this.chosen = undefined;
    this.marks = {};
    filter.addEventListener("input", () => this.draw());
    filter.addEventListener("keydown", ({ key }) => key === "Escape" && this.clearFilter());
    opener.addEventListener("click", () => this.open(opener.getAttribute("aria-expanded") === "false"));
    opener.parentElement.addEventListener("keydown", ({ key, target }) => {
      if (key !== "Escape" || target === filter || opener.getAttribute("aria-expanded") === "false") return;
      this.open(false);
      opener.focus();
    });
  }

  set(entries) {
    this.entries = entries;
    this.draw();
  }

  open(isOpen) {
    this.opener.setAttribute("aria-expanded", String(isOpen));
  }

  clearFilter() {
    this.filter.value = "";
    this.draw();
  }

  /**
   * Return the entry that a fragment names: the first one where it names none, and null where there is no such entry.
   * A resource that is not listed can be read all the same: a result may have linked to it.
   */
  find(hash) {
    const named = namedBy(hash);
    if (!named) return (hash && this.chosen) || this.entries[0];
    const found = this.entries.find((each) => each.hash === hash);
    if (found || named.kind !== "resource" || !this.entries.length) return found ?? null;
    const { kind, name: uri } = named;
    return entryOf(kind, uri, { uri, name: uri, description: "The list of resources does not have it. The server may read it all the same, for example by a template." });
  }

  /** Say what a fragment names that is not there. */
  missing(hash) {
    const { kind, name } = namedBy(hash);
    return `This server has no ${WORDS[kind]} named “${name}” for this user and these client settings. Choose another one from the list.`;
  }

  choose(entry) {
    this.chosen = entry;
    this.opener.textContent = entry ? titleOf(entry) : "What the server offers";
    this.open(false);
    for (const item of this.list.querySelectorAll("a")) {
      if (item.getAttribute("href") === entry?.hash) item.setAttribute("aria-current", "page");
      else item.removeAttribute("aria-current");
    }
  }

  /** Show beside entries what their calls do: words by fragment. */
  mark(marks) {
    this.marks = marks;
    for (const item of this.list.querySelectorAll("a")) item.nextElementSibling.textContent = marks[item.getAttribute("href")] ?? "";
  }

  draw() {
    const wanted = this.filter.value.trim().toLowerCase();
    const shown = this.entries.filter(({ name, listed }) => `${name} ${listed.title ?? ""} ${listed.name ?? ""} ${listed.description ?? ""}`.toLowerCase().includes(wanted));
    this.list.replaceChildren(...GROUPS.flatMap(([kind, title]) => {
      const group = shown.filter((each) => each.kind === kind);
      return group.length ? [el("h2", {}, title), el("ul", {}, group.map((each) => this.item(each)))] : [];
    }));
    if (this.entries.length && !shown.length) this.list.append(el("p", { class: "hint", role: "status" }, `Nothing has “${this.filter.value.trim()}” in its name or description.`));
  }

  item(entry) {
    const title = titleOf(entry);
    const isShared = this.entries.some((other) => other !== entry && other.kind === entry.kind && titleOf(other) === title);
    const link = el("a", { href: entry.hash, "aria-current": entry.hash === this.chosen?.hash ? "page" : null }, title, isShared ? el("code", {}, ` ${entry.name}`) : null);
    return el("li", {}, link, el("span", { class: "mark" }, this.marks[entry.hash] ?? ""));
  }
}

/** Return the kind and the name in a fragment; null where it is not of an entry, as that of a link within the page. */
export function namedBy(hash) {
  const [, kind, name] = /^#(\w+)\/(.+)$/s.exec(hash) ?? [];
  if (!Object.hasOwn(WORDS, kind ?? "")) return null;
  try {
    return { kind, name: decodeURIComponent(name) };
  } catch {
    return { kind, name };
  }
}
