// Whether the server is there. A server that is being written stops and starts all the time.
import { announce, el } from "./dom.js";

const PAUSE = 1000; // milliseconds between two looks
const AWAY = "The server does not answer. Start it again, with the command that you started it with: this page notices, and goes on.";

export class Presence {
  /** @param onBack is called when the server is there again. */
  constructor(place, onBack) {
    Object.assign(this, { place, onBack });
  }

  /** Look whether the server is away, and until it is back; say so meanwhile. */
  lost() {
    this.waiting ??= this.wait().finally(() => (this.waiting = undefined));
    return this.waiting;
  }

  async wait() {
    if (await answers()) return;
    const notice = el("p", { class: "notice bad away", role: "alert" }, AWAY);
    this.place.before(notice);
    do await new Promise((resolve) => setTimeout(resolve, PAUSE));
    while (!(await answers()));
    notice.remove();
    announce("The server answers again.");
    this.onBack();
  }
}

async function answers() {
  try {
    await (await fetch("docs/about", { cache: "no-store" })).json();
    return true;
  } catch {
    return false;
  }
}
