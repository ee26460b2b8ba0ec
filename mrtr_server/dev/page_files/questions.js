// Questions of a server, shown as a client would show them. Each is answered on its own; then all answers go out together.
import { button, el, link, newId, prose } from "./dom.js";
import { formFor } from "./forms.js";
import { jsonView } from "./json_view.js";
import { ofMessage } from "./misfits.js";
import { blocks } from "./content.js";

/**
 * Show questions.
 *
 * @param onAnswers gets the answers by key, once each question has one.
 * @param drawForm draws a form by the page that it names: returns what shows it, the promise of its answer and how it goes; null without a page.
 * @param before the answers of the round before: a question that is asked again begins with what was given then.
 */
export function questionsView(requests, onAnswers, drawForm, before = {}) {
  const answers = {};
  const keys = Object.keys(requests);
  const views = keys.map((key) => questionView(key, requests[key], drawForm, givenBefore(key, before), (answer) => {
    answers[key] = answer;
    if (keys.every((each) => Object.hasOwn(answers, each))) onAnswers({ ...answers });
    else views.find((view) => !Object.hasOwn(answers, view.key))?.focus();
  }));
  const head = keys.length > 1 ? el("p", { class: "hint" }, `The server asks ${keys.length} questions at once. The answers go out together.`) : null;
  return { element: el("div", { class: "questions" }, head, views.map((view) => view.element)), focus: () => views[0]?.focus() };
}

/** Return what was answered when this was asked before. A task asks again under a key with another number. */
function givenBefore(key, before) {
  return (before[key] ?? before[key.replace(/_\d+$/, "")])?.content;
}

function questionView(key, request, drawForm, given, onAnswer) {
  const params = request?.params ?? {};
  const kind = kindOf(request);
  const head = el("p", { class: "kind" }, kind.title, " ", el("code", {}, key));
  const misfits = ofMessage(params.message);
  const inner = kind.show(params, misfits.length ? given : undefined);
  const decided = el("p", { class: "decided", role: "status" });
  const page = drawForm(params);
  const send = (answer, words) => {
    page?.close();
    for (const control of form.querySelectorAll("button, input, select, textarea")) control.disabled = true;
    decided.textContent = words;
    form.classList.add("answered");
    onAnswer(answer);
  };
  const actions = kind.actions(inner, send);
  const form = el("form", {
    class: "question", novalidate: true, "aria-label": `${kind.title}: ${params.message ?? key}`,
    on: {
      submit(event) {
        event.preventDefault();
        actions.submit();
      },
      keydown(event) {
        if (event.key !== "Escape" || !actions.cancel) return;
        event.preventDefault();
        actions.cancel();
      },
    },
  }, head, params.message ? prose(params.message, { class: "prose ask" }) : null, page?.element, inner.element,
  el("div", { class: "actions" }, el("button", { type: "submit", class: "primary" }, actions.label), actions.others,
    actions.cancel ? el("span", { class: "hint keys" }, `${inner.element.querySelector("textarea") ? "Enter, or Ctrl+Enter in a large field, sends" : "Enter sends"}, Esc cancels`) : null), decided);
  page?.answered.then(
    (answer) => form.classList.contains("answered") || send(answer, `The page answered: ${answer.action}.`),
    (error) => form.classList.contains("answered") || page.element.replaceChildren(el("p", { class: "hint" }, error.message)));
  const focus = () => (inner.focus ?? (() => form.querySelector("button").focus()))();
  return { key, element: form, focus: () => (misfits.length && inner.show?.(misfits)) || focus() };
}

function kindOf(request) {
  const params = request?.params ?? {};
  const found = KINDS.find((kind) => kind.method === request?.method && (!kind.mode || kind.mode === (params.mode ?? "form")));
  if (found) return found.view(params);
  return { ...unknown, title: `Unknown question ${request?.method ?? ""}` };
}

function isConfirmation(schema) {
  const properties = schema?.properties ?? {};
  const names = Object.keys(properties);
  return names.length === 0 || (names.length === 1 && properties.confirm?.type === "boolean");
}

function elicitationActions(send, { label, submit, no = "Decline" }) {
  const cancel = () => send({ action: "cancel" }, "You cancelled.");
  return {
    label,
    submit,
    cancel,
    others: [button(no, () => send({ action: "decline" }, "You declined.")), button("Cancel", cancel)],
  };
}

const form = {
  title: "Form",
  show: (params, given) => formFor(params.requestedSchema ?? { type: "object", properties: {} }, { label: "Answer", given }),
  actions: (inner, send) => elicitationActions(send, {
    label: "Accept",
    submit() {
      const content = inner.read();
      if (content !== null) send({ action: "accept", content }, "You accepted.");
    },
  }),
};

const confirmation = {
  title: "Confirmation",
  show: (params) => ({ element: el("div"), yes: params.requestedSchema?.properties?.confirm ? { confirm: true } : {} }),
  actions: (inner, send) => elicitationActions(send, {
    label: "Yes",
    no: "No",
    submit: () => send({ action: "accept", content: inner.yes }, "You said yes."),
  }),
};

const page = {
  title: "Page to open",
  show(params) {
    let host = "";
    try {
      host = new URL(params.url).host;
    } catch {
      // the address is shown as it is
    }
    const element = el("div", {},
      el("p", {}, host ? ["It is at ", el("b", {}, host), ". Open it only if you trust that address."] : "Its address can't be read."),
      el("p", {}, link(params.url ?? "")));
    return { element, focus: () => (element.querySelector("a") ?? element.closest("form").querySelector("button")).focus() };
  },
  actions: (inner, send) => elicitationActions(send, { label: "I have done it", submit: () => send({ action: "accept" }, "You opened the page.") }),
};

const sampling = {
  title: "Message of a model",
  show(params) {
    const text = el("textarea", { id: newId("field"), rows: 4 });
    const model = el("input", { id: newId("field"), value: "a-person" });
    const { messages: _, systemPrompt: __, ...wishes } = params;
    const problem = el("p", { class: "field-problem", role: "alert" });
    const element = el("div", { class: "fields" },
      params.systemPrompt ? el("div", { class: "message" }, el("b", {}, "system"), prose(params.systemPrompt)) : null,
      (params.messages ?? []).map((message) => el("div", { class: "message" }, el("b", {}, message.role ?? ""), blocks(message.content))),
      el("details", {}, el("summary", {}, "What the server wishes for"), jsonView(wishes, "Wishes")),
      el("div", { class: "field" }, el("label", { for: text.id }, "Answer in place of the model"), text, problem),
      el("div", { class: "field" }, el("label", { for: model.id }, "Name of the model"), model));
    return { element, text, model, problem, focus: () => text.focus() };
  },
  actions: (inner, send) => ({
    label: "Send the message",
    others: [],
    cancel: null,
    submit() {
      if (!inner.text.value.trim()) {
        inner.problem.textContent = "Please write a message.";
        inner.text.focus();
        return;
      }
      const content = { type: "text", text: inner.text.value };
      send({ role: "assistant", content, model: inner.model.value || "a-person", stopReason: "endTurn" }, "You wrote a message.");
    },
  }),
};

const roots = {
  title: "Folders of the client",
  show: () => formFor({
    type: "object",
    required: ["roots"],
    properties: {
      roots: {
        type: "array", title: "Folders", default: [{ uri: "file:///project", name: "project" }],
        items: { type: "object", title: "Folder", required: ["uri"], properties: { uri: { type: "string", title: "Address, file://…" }, name: { type: "string", title: "Name" } } },
      },
    },
  }, { label: "Folders" }),
  actions: (inner, send) => ({
    label: "Send the folders",
    others: [],
    cancel: null,
    submit() {
      const answer = inner.read();
      if (answer !== null) send(answer, "You sent the folders.");
    },
  }),
};

const unknown = {
  show: (params) => {
    const inner = formFor({ type: "object", additionalProperties: true }, { label: "Answer as JSON" });
    return { ...inner, element: el("div", {}, jsonView(params, "Question"), inner.element) };
  },
  actions: (inner, send) => ({
    label: "Send",
    others: [],
    cancel: null,
    submit() {
      const answer = inner.read();
      if (answer !== null) send(answer, "You answered.");
    },
  }),
};

/** The kinds of asks that the page can answer: by which request they come, what declares them, and what shows them. */
export const KINDS = [
  { name: "form", title: "Forms and confirmations", method: "elicitation/create", mode: "form", capability: ["elicitation", "form"],
    view: (params) => (isConfirmation(params.requestedSchema) ? confirmation : form) },
  { name: "url", title: "Pages to open", method: "elicitation/create", mode: "url", capability: ["elicitation", "url"], view: () => page },
  { name: "sampling", title: "Messages of a model", method: "sampling/createMessage", capability: ["sampling"], view: () => sampling },
  { name: "roots", title: "Folders", method: "roots/list", capability: ["roots"], view: () => roots },
];
