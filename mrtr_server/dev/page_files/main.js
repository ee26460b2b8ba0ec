// The page: what the server offers, the form of one entry, and its calls.
import { pageOf, visibilityOf } from "./app_view.js";
import { Calls } from "./calls.js";
import { Client, tokenHeader } from "./client.js";
import { suggest } from "./completion.js";
import { modern } from "./dialects.js";
import { el, newId, prose } from "./dom.js";
import { formFor } from "./forms.js";
import { jsonView } from "./json_view.js";
import { ofResult } from "./misfits.js";
import { entryOf, namedBy, Offers, titleOf } from "./offers.js";
import { Presence } from "./presence.js";
import { showSettings } from "./settings.js";
import { chip } from "./wire_view.js";

const place = (id) => document.getElementById(id);
const users = ["alice", "bob"];
const offers = new Offers({ list: place("entries"), filter: place("filter"), opener: place("opener") });
let client = null;
let calls = null;
let onPage = {}; // the entry on the page: what it was made of, the schema of its arguments, and its form
let suggests = false;
let loading = null; // the last reading of the lists

const KEPT = "mrtr-page-token"; // under this name a tab keeps the token of the page

/** Return the token of the page. It is taken out of the address, where others would see it. */
function takeToken() {
  const found = location.hash.match(/^#token=([\w-]+)(?:&(.*))?$/);
  if (found) {
    sessionStorage.setItem(KEPT, found[1]);
    history.replaceState(null, "", found[2] ? `#${found[2]}` : location.pathname + location.search);
  }
  return sessionStorage.getItem(KEPT) ?? "";
}

async function begin() {
  const token = takeToken();
  const about = await aboutPage(token);
  client = new Client(about, token);
  const presence = new Presence(place("welcome"), comeBack);
  client.onLost = () => presence.lost();
  calls = new Calls(client, place("calls"), () => users, (marks) => offers.mark(marks), (given) => showEntry({ given }));
  if (about.wantsToken) askForToken(token ? "That is not the token of this page. " : "");
  showSettings(place("settings"), client, users, load);
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#token=")) location.reload();
    else if (!location.hash || namedBy(location.hash)) showEntry({ focus: true });
  });
  addEventListener("keydown", sendFromTextArea);
  place("calls").addEventListener("click", readLinked);
  await load();
}

async function aboutPage(token) {
  return (await fetch("docs/about", { cache: "no-store", headers: tokenHeader(token) })).json();
}

/** The server is there again: with the code and the keys that it has now. */
async function comeBack() {
  const token = sessionStorage.getItem(KEPT) ?? "";
  const about = await aboutPage(token);
  client.learn(about, token);
  if (!place("locked") && about.wantsToken && token) askForToken("The server was started anew, and has another token. ");
  else if (!about.wantsToken) place("locked")?.remove();
  await load();
}

/** Enter makes a line in a large field; with Ctrl it sends. */
function sendFromTextArea(event) {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !event.target.matches("textarea")) return;
  event.preventDefault();
  event.target.form?.requestSubmit();
}

/** Follow a link to a resource in a result: show the resource, and read it. */
function readLinked(event) {
  const link = event.target.closest("a[data-reads]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.pushState(null, "", link.hash);
  showEntry({ focus: true });
  const entry = offers.find(link.hash);
  if (entry) start(entry, {});
}

function askForToken(why) {
  const token = el("input", { id: newId("set"), type: "password", autocomplete: "off", spellcheck: "false", required: true });
  place("welcome").before(el("form", { class: "notice", id: "locked", "aria-label": "Token of the page", on: { submit(event) {
    event.preventDefault();
    sessionStorage.setItem(KEPT, token.value.trim());
    location.reload();
  } } },
    el("p", {}, `${why}Journals, steps and other users need the token that the server printed with the address of this page.`),
    el("div", { class: "field" }, el("label", { for: token.id }, "Token of the page"), token),
    el("div", { class: "actions" }, el("button", { type: "submit" }, "Use it"))));
}

/** Load what the server offers to this user. Only the last reading counts: an earlier one was with other settings. */
async function load() {
  const reading = lists().then((found) => () => showLists(found), (error) => () => showFailure(error));
  loading = reading;
  place("main").setAttribute("aria-busy", "true");
  place("welcome").className = "";
  place("welcome").textContent = "Loading what this server offers…";
  const show = await reading;
  if (loading !== reading) return;
  show();
  place("main").removeAttribute("aria-busy");
}

async function lists() {
  const found = await client.ask("server/discover");
  const can = found.capabilities ?? {};
  const [tools, prompts, resources, templates] = await Promise.all([
    can.tools ? client.list("tools/list", "tools") : [],
    can.prompts ? client.list("prompts/list", "prompts") : [],
    can.resources ? client.list("resources/list", "resources") : [],
    can.resources ? client.list("resources/templates/list", "resourceTemplates") : [],
  ]);
  return { found, tools, prompts, resources, templates };
}

function showLists({ found, tools, prompts, resources, templates }) {
  suggests = Boolean(found.capabilities?.completions);
  showServer(found._meta?.["io.modelcontextprotocol/serverInfo"] ?? {}, found.instructions);
  client.tools = tools;
  offers.set([
    ...tools.map((tool) => entryOf("tool", tool.name, tool)),
    ...prompts.map((prompt) => entryOf("prompt", prompt.name, prompt)),
    ...resources.map((resource) => entryOf("resource", resource.uri, resource)),
    ...templates.map((template) => entryOf("template", template.uriTemplate, template)),
  ]);
  const isEmpty = !offers.entries.length;
  place("welcome").textContent = isEmpty ? "This server offers nothing yet. Add a function with @app.tool, then load this page again." : "";
  place("welcome").hidden = !isEmpty;
  showEntry();
}

function showFailure(error) {
  place("welcome").hidden = false;
  place("welcome").className = "notice bad";
  place("welcome").textContent = `${error.message.replace(/\.?$/, ".")} If the server wants a token, give it in “Client settings”. If it refuses this origin, list it in origins=.`;
  offers.set([]);
}

function showServer(info, instructions) {
  const title = info.title ?? info.name ?? "MCP server";
  document.title = title;
  place("server-name").textContent = title;
  const version = info.version && info.version !== "0.0.0" ? `version ${info.version}` : "";
  place("server-about").textContent = [info.description ?? instructions ?? "An MCP server.", version].filter(Boolean).join(" · ");
}

/**
 * Show the entry that the address names. One that is on the page already is not built anew, and a form stays while its
 * schema does: somebody may have typed into it. `given` are arguments to begin with.
 */
function showEntry({ focus = false, given } = {}) {
  const each = offers.find(location.hash);
  const made = JSON.stringify([each, each === null && location.hash, suggests, client.dialect === modern]);
  if (made !== onPage.made || given) build(each, made, given);
  if (focus) place("entry").querySelector("h2")?.focus();
  if (given) onPage.form.focus();
}

function build(each, made, given) {
  const schema = each ? argumentsOf(each) : null;
  const isSame = !given && each && each.hash === onPage.hash && JSON.stringify(schema) === JSON.stringify(onPage.schema);
  const form = isSame ? onPage.form : each && formOf(each, schema, given);
  onPage = { made, hash: each?.hash, schema, form };
  const missing = each === null ? el("p", { class: "notice", role: "status" }, offers.missing(location.hash)) : "";
  place("entry").replaceChildren(...(each ? entryView(each, form) : [missing]));
  offers.choose(each ?? undefined);
  calls.show(each?.hash ?? "");
}

function formOf(each, schema, given) {
  const form = formFor(schema, { label: "Arguments", given });
  if (suggests && each.kind === "prompt") suggest(form.element, client, { type: "ref/prompt", name: each.name });
  if (suggests && each.kind === "template") suggest(form.element, client, { type: "ref/resource", uri: each.name });
  return form;
}

function entryView(each, form) {
  const { listed } = each;
  const call = el("button", { type: "submit", class: "primary call" }, { tool: "Call", prompt: "Get", resource: "Read", template: "Read" }[each.kind]);
  const asTask = el("input", { type: "checkbox" });
  asTask.checked = true;
  const taskChoice = each.kind === "tool" && client.dialect !== modern ? el("label", { class: "choice" }, asTask, " as a task, if the tool has tasks") : null;
  const heading = el("h2", { tabindex: "-1" }, titleOf(each));
  return [
    el("div", { class: "entry-head" }, heading, heading.textContent === each.name ? null : el("code", { class: "key" }, each.name), hints(listed)),
    listed.description ? prose(listed.description) : el("p", { class: "hint" }, "It has no description. Its docstring would be shown here."),
    visibilityOf(listed).includes("model") ? "" : el("p", { class: "hint" }, "For pages alone: hosts do not show this tool to the model. They may call it all the same, as you can here, so what it must not do without the person, it asks."),
    el("form", { class: "entry-form", novalidate: true, on: { async submit(event) {
      event.preventDefault();
      const value = form.read();
      if (value === null) return;
      await loading; // what is called is as it is listed with the settings of now
      start(offers.entries.find(({ hash }) => hash === each.hash) ?? each, value, { asTask: asTask.checked, form });
    } } }, form.element, el("div", { class: "actions" }, call, taskChoice)),
    el("details", { class: "schema" }, el("summary", {}, "What clients get in the list (JSON)"), jsonView(listed, "List entry")),
  ];
}

function hints(listed) {
  const given = listed.annotations ?? {};
  const words = [];
  if (given.readOnlyHint) words.push("only reads");
  if (given.destructiveHint === true && !given.readOnlyHint) words.push("may destroy");
  if (given.idempotentHint) words.push("idempotent");
  if (given.taskHint) words.push("can be a task");
  if (pageOf(listed)) words.push("has a page");
  if (listed.mimeType) words.push(listed.mimeType);
  return words.map((word) => chip(word));
}

/** Return a schema of what an entry takes. */
function argumentsOf({ kind, listed }) {
  if (kind === "tool") return listed.inputSchema ?? { type: "object" };
  if (kind === "prompt") {
    const given = listed.arguments ?? [];
    const properties = Object.fromEntries(given.map((each) => [each.name, { type: "string", title: each.title ?? each.name, description: each.description }]));
    return { type: "object", properties, required: given.filter((each) => each.required).map((each) => each.name) };
  }
  if (kind === "template") {
    const names = variables(listed.uriTemplate);
    return { type: "object", properties: Object.fromEntries(names.map((name) => [name, { type: "string" }])), required: names };
  }
  return { type: "object" };
}

function variables(template) {
  return [...template.matchAll(/\{[+#./;?&]?([^}]*)\}/g)].flatMap(([, names]) => names.split(",").map((name) => name.replace(/[*:].*$/, "")));
}

function expand(template, values) {
  return template.replaceAll(/\{([+]?)([^}]*)\}/g, (_, reserved, name) => (reserved ? encodeURI : encodeURIComponent)(values[name] ?? ""));
}

/** Call an entry. What the server finds wrong with its arguments stands at the fields of its form. */
function start(each, value, { asTask = false, form } = {}) {
  const kinds = {
    tool: () => ({ method: "tools/call", params: { name: each.name, arguments: value }, schema: argumentsOf(each), asTask, tool: each.listed }),
    prompt: () => ({ method: "prompts/get", params: { name: each.name, arguments: value } }),
    resource: () => ({ method: "resources/read", params: { uri: each.name } }),
    template: () => ({ method: "resources/read", params: { uri: expand(each.name, value) } }),
  };
  const flow = calls.begin({ title: titleOf(each), ...kinds[each.kind]() }, each.hash, ({ result }) => {
    if (form?.element.isConnected && flow.rounds === 1 && flow.mayTakeFocus()) form.show(ofResult(result));
  });
}

begin().catch((error) => {
  place("welcome").className = "notice bad";
  place("welcome").textContent = `The page can't reach its server: ${error.message}. Start the server, and load this page again.`;
});
