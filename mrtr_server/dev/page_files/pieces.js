// Pieces of a result, shown as they come, until the result itself is there.
import { blocks } from "./content.js";
import { el } from "./dom.js";

const PIECE = "notifications/tools/content";

/** The blocks that have come so far. A piece that comes again takes the place of the first. */
export class Pieces {
  constructor() {
    this.pieces = new Map();
    this.element = el("div", { class: "result pieces", role: "group", "aria-label": "Pieces of the result", hidden: true });
  }

  /** Take a notification, if it is of a piece. */
  take({ method, params }) {
    if (method !== PIECE || !Number.isInteger(params?.index) || !Number.isInteger(params.block)) return;
    this.pieces.set(params.index, params);
    this.changed ??= requestAnimationFrame(() => this.draw());
  }

  /** Leave the place to the result, which has all of them. */
  hide() {
    cancelAnimationFrame(this.changed);
    this.element.remove();
  }

  /** Draw at most once a frame, however many come. */
  draw() {
    this.changed = null;
    this.element.hidden = false;
    this.element.replaceChildren(blocks(joined([...this.pieces.values()].sort((one, other) => one.index - other.index))));
  }
}

/** Return the blocks of content that pieces make: texts of one block are one text. */
function joined(pieces) {
  const found = new Map();
  for (const { block, content } of pieces) {
    const before = found.get(block);
    const continues = before?.type === "text" && content?.type === "text";
    found.set(block, continues ? { ...before, text: `${before.text}${content.text}` } : content);
  }
  return [...found.values()];
}
