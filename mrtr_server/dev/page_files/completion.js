// Suggestions of the server for arguments of prompts and variables of templates.
import { el, newId } from "./dom.js";

const PAUSE = 150;

/** Suggest values in the fields of a form. `ref` names the prompt or template. */
export function suggest(form, client, ref) {
  const hints = new WeakMap();
  let timer = null;

  function begin({ target }) {
    if (!target.matches("input[data-name]")) return;
    if (!hints.has(target)) {
      const list = el("datalist", { id: newId("suggested") });
      const hint = el("p", { class: "hint", role: "status" });
      target.setAttribute("list", list.id);
      target.after(list, hint);
      hints.set(target, { list, hint });
    }
    clearTimeout(timer);
    timer = setTimeout(() => load(target), PAUSE);
  }

  async function load(input) {
    const { list, hint } = hints.get(input);
    const { value } = input;
    const others = [...form.querySelectorAll("input[data-name]")].filter((each) => each !== input && each.value);
    const params = { ref, argument: { name: input.dataset.name, value }, context: { arguments: Object.fromEntries(others.map((each) => [each.dataset.name, each.value])) } };
    try {
      const { completion } = await client.ask("completion/complete", params);
      if (input.value !== value) return;
      list.replaceChildren(...completion.values.map((each) => el("option", { value: each })));
      const total = completion.total ?? completion.values.length;
      hint.textContent = total ? `${total}${completion.hasMore ? " or more" : ""} suggested by the server` : "";
    } catch (error) {
      hint.textContent = `The server suggests nothing: ${error.message}`;
    }
  }

  form.addEventListener("focusin", begin);
  form.addEventListener("input", begin);
}
