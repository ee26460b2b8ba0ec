// Elements. Whatever a server sends becomes text, never markup.

/** Return an element. `on` has listeners by event; any other attribute that is false, null or undefined is left out. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

let ids = 0;

/** Return an id that no other element has. */
export function newId(of = "id") {
  ids += 1;
  return `${of}-${ids}`;
}

/** Tell users of screen readers what has happened. */
export function announce(text) {
  document.getElementById("live").textContent = text;
}

export function button(text, action, attributes = {}) {
  return el("button", { type: "button", ...attributes, on: { click: action } }, text);
}

/** Return a button that copies a text. Where the clipboard is closed to the page, as on a plain HTTP address of another machine, the selection does it. */
export function copyButton(text, label, write, attributes = {}) {
  const copy = button(text, async () => {
    let done = "Copied";
    try {
      await navigator.clipboard.writeText(write());
    } catch {
      if (!copySelected(write(), copy)) done = "Not allowed";
    }
    copy.textContent = done;
    announce(done);
    setTimeout(() => (copy.textContent = text), 1500);
  }, { class: "small quiet", "aria-label": label, ...attributes });
  return copy;
}

function copySelected(text, beside) {
  const area = el("textarea", { class: "hidden", "aria-hidden": "true" });
  area.value = text;
  beside.after(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  beside.focus();
  return done;
}

/** Return a link for addresses of the web, and text for anything else. */
export function link(address, text = address) {
  let parsed = null;
  try {
    parsed = new URL(String(address));
  } catch {
    // it stays text
  }
  if (parsed === null || !["http:", "https:"].includes(parsed.protocol)) return el("span", { class: "address" }, String(text));
  return el("a", { href: parsed.href, target: "_blank", rel: "noopener noreferrer", class: "address" }, String(text));
}

/** Return text in paragraphs, as it was written. */
export function prose(text, attributes = {}) {
  return el("div", { class: "prose", ...attributes }, String(text));
}
