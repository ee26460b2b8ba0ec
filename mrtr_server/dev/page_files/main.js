// The page: what the server offers, the form of one entry, and the calls.
import { Client, tokenHeader } from "./client.js";
import { suggest } from "./completion.js";
import { el, newId, prose } from "./dom.js";
import { dialects, modern } from "./dialects.js";
import { Flow } from "./flow.js";
import { formFor } from "./forms.js";
import { jsonView } from "./json_view.js";
import { KINDS } from "./questions.js";
import { chip } from "./wire_view.js";

const place = (id) => document.getElementById(id);
const users = ["alice", "bob"];
let client = null;
let entries = [];
let onPage = null; // what the entry on the page was made of
let suggests = false;

const CAPABILITIES = {
  ...Object.fromEntries(KINDS.map((kind) => [kind.name, kind.title])),
  tasks: "Tasks",
};

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
  const about = await (await fetch("docs/about", { cache: "no-store", headers: tokenHeader(token) })).json();
  client = new Client(about.endpoint, about.inside, about.users, token);
  if (about.wantsToken) askForToken(Boolean(token));
  showSettings();
  await load();
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#token=")) location.reload();
    else showEntry({ focus: true });
  });
  place("filter").addEventListener("input", showList);
  place("filter").addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      place("filter").value = "";
      showList();
    }
  });
}

function askForToken(isWrong) {
  const token = el("input", { id: newId("set"), type: "password", autocomplete: "off", spellcheck: "false", required: true });
  place("welcome").before(el("form", { class: "notice", id: "locked", "aria-label": "Token of the page", on: { submit(event) {
    event.preventDefault();
    sessionStorage.setItem(KEPT, token.value.trim());
    location.reload();
  } } },
    el("p", {}, `${isWrong ? "That is not the token of this page. " : ""}Journals, steps and other users need the token that the server printed with the address of this page.`),
    el("div", { class: "field" }, el("label", { for: token.id }, "Token of the page"), token),
    el("div", { class: "actions" }, el("button", { type: "submit" }, "Use it"))));
}

/** Load what the server offers to this user. */
async function load() {
  const welcome = place("welcome");
  welcome.className = "";
  welcome.textContent = "Loading what this server offers…";
  try {
    const found = await client.ask("server/discover");
    const can = found.capabilities ?? {};
    suggests = Boolean(can.completions);
    showServer(found._meta?.["io.modelcontextprotocol/serverInfo"] ?? {}, found.instructions);
    const [tools, prompts, resources, templates] = await Promise.all([
      can.tools ? client.list("tools/list", "tools") : [],
      can.prompts ? client.list("prompts/list", "prompts") : [],
      can.resources ? client.list("resources/list", "resources") : [],
      can.resources ? client.list("resources/templates/list", "resourceTemplates") : [],
    ]);
    entries = [
      ...tools.map((tool) => entry("tool", tool.name, tool)),
      ...prompts.map((prompt) => entry("prompt", prompt.name, prompt)),
      ...resources.map((resource) => entry("resource", resource.uri, resource)),
      ...templates.map((template) => entry("template", template.uriTemplate, template)),
    ];
    welcome.textContent = entries.length ? "" : "This server offers nothing yet. Add a function with @app.tool, then load this page again.";
    welcome.hidden = entries.length > 0;
    showList();
    showEntry({ focus: false });
  } catch (error) {
    entries = [];
    showList();
    welcome.hidden = false;
    welcome.className = "notice bad";
    welcome.textContent = `${error.message.replace(/\.?$/, ".")} If the server wants a token, give it in “Client settings”. If it refuses this origin, add it to allowed_origins=.`;
  }
}

function entry(kind, name, listed) {
  return { kind, name, listed, hash: `#${kind}/${encodeURIComponent(name)}` };
}

function showServer(info, instructions) {
  const title = info.title ?? info.name ?? "MCP server";
  document.title = title;
  place("server-name").textContent = title;
  const version = info.version && info.version !== "0.0.0" ? `version ${info.version}` : "";
  place("server-about").textContent = [info.description ?? instructions ?? "An MCP server.", version].filter(Boolean).join(" · ");
}

function showSettings() {
  const token = el("input", { id: newId("set"), type: "password", autocomplete: "off", spellcheck: "false", on: { change: () => { client.token = token.value.trim(); load(); } } });
  const dialect = el("select", { id: newId("set"), on: { change: () => (client.dialect = dialects[Number(dialect.value)]) } },
    dialects.map((each, at) => el("option", { value: at }, each.title)));
  const list = el("datalist", { id: newId("users") }, users.map((name) => el("option", { value: name })));
  const user = el("input", { id: newId("set"), list: list.id, maxlength: 64, placeholder: "nobody in particular", autocomplete: "off", disabled: Boolean(client.users), on: { change: () => {
    client.user = user.value.trim();
    if (client.user && !users.includes(client.user)) users.push(client.user);
    load();
  } } });
  const boxes = Object.entries(CAPABILITIES).map(([name, title]) => {
    const box = el("input", { type: "checkbox", on: { change: () => (client.can[name] = box.checked) } });
    box.checked = true;
    return el("label", { class: "choice" }, box, ` ${title}`);
  });
  place("settings-panel").addEventListener("submit", (event) => event.preventDefault());
  place("settings-panel").append(
    el("div", { class: "field" }, el("label", { for: user.id }, "Call as"), user, list,
      el("p", { class: "hint" }, client.inside ? `Other users and journals are off. ${client.inside}` : client.users || "A user that this page makes up, on this machine alone.")),
    el("div", { class: "field" }, el("label", { for: token.id }, "Bearer token"), token, el("p", { class: "hint" }, "Kept until you leave this page.")),
    el("div", { class: "field" }, el("label", { for: dialect.id }, "Form of the protocol"), dialect),
    el("fieldset", { class: "field" }, el("legend", {}, "This client can do"), boxes));
  place("settings").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !place("settings").open) return;
    place("settings").open = false;
    place("settings").querySelector("summary").focus();
  });
}

const GROUPS = [["tool", "Tools"], ["prompt", "Prompts"], ["resource", "Resources"], ["template", "Resource templates"]];

function showList() {
  const wanted = place("filter").value.trim().toLowerCase();
  const shown = entries.filter((each) => `${each.name} ${each.listed.title ?? ""}`.toLowerCase().includes(wanted));
  place("entries").replaceChildren(...GROUPS.flatMap(([kind, title]) => {
    const listed = shown.filter((each) => each.kind === kind);
    if (!listed.length) return [];
    return [el("h2", {}, title), el("ul", {}, listed.map((each) => el("li", {}, el("a", { href: each.hash, "aria-current": each.hash === chosen()?.hash ? "page" : null }, each.listed.title ?? each.listed.name ?? each.name))))];
  }));
}

function chosen() {
  return entries.find((each) => each.hash === location.hash) ?? entries[0];
}

/** Show the entry that the address names. One that is on the page already is not built anew: somebody may have typed into its form. */
function showEntry({ focus }) {
  const each = chosen();
  const section = place("entry");
  const wanted = JSON.stringify([each, suggests, client.dialect === modern]);
  if (wanted === onPage) {
    if (focus) section.querySelector("h2")?.focus();
    return;
  }
  onPage = wanted;
  if (!each) {
    section.replaceChildren();
    return;
  }
  for (const item of place("entries").querySelectorAll("a")) {
    if (item.getAttribute("href") !== each.hash) item.removeAttribute("aria-current");
    else {
      item.setAttribute("aria-current", "page");
      place("entries").scrollLeft = item.offsetLeft - place("entries").offsetLeft - 8; // a narrow window has them in one row
    }
  }
  const { listed } = each;
  const schema = argumentsOf(each);
  const form = formFor(schema, { label: "Arguments" });
  if (suggests && each.kind === "prompt") suggest(form.element, client, { type: "ref/prompt", name: each.name });
  if (suggests && each.kind === "template") suggest(form.element, client, { type: "ref/resource", uri: each.name });
  const call = el("button", { type: "submit", class: "primary call" }, { tool: "Call", prompt: "Get", resource: "Read", template: "Read" }[each.kind]);
  const asTask = el("input", { type: "checkbox" });
  asTask.checked = true;
  const taskChoice = each.kind === "tool" && client.dialect !== modern ? el("label", { class: "choice" }, asTask, " as a task, if the tool has tasks") : null;
  const heading = el("h2", { tabindex: "-1" }, listed.title ?? listed.name ?? each.name);
  section.replaceChildren(
    el("div", { class: "entry-head" }, heading, heading.textContent === each.name ? null : el("code", { class: "key" }, each.name), hints(listed)),
    listed.description ? prose(listed.description) : el("p", { class: "hint" }, "It has no description. Its docstring would be shown here."),
    el("form", { class: "entry-form", novalidate: true, on: { submit(event) {
      event.preventDefault();
      const value = form.read();
      if (value !== null) start(each, value, schema, asTask.checked);
    } } }, form.element, el("div", { class: "actions" }, call, taskChoice)),
    el("details", { class: "schema" }, el("summary", {}, "As it is listed"), jsonView(listed, "List entry")));
  if (focus) heading.focus();
}

function hints(listed) {
  const given = listed.annotations ?? {};
  const words = [];
  if (given.readOnlyHint) words.push("only reads");
  if (given.destructiveHint === true && !given.readOnlyHint) words.push("may destroy");
  if (given.idempotentHint) words.push("idempotent");
  if (given.taskHint) words.push("can be a task");
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

function start(each, value, schema, asTask) {
  const calls = {
    tool: () => ({ method: "tools/call", params: { name: each.name, arguments: value }, schema, asTask }),
    prompt: () => ({ method: "prompts/get", params: { name: each.name, arguments: value } }),
    resource: () => ({ method: "resources/read", params: { uri: each.name } }),
    template: () => ({ method: "resources/read", params: { uri: expand(each.name, value) } }),
  };
  const flow = new Flow(client, { title: each.listed.title ?? each.listed.name ?? each.name, ...calls[each.kind]() }, () => users);
  place("calls").prepend(flow.element);
  flow.element.scrollIntoView({ block: "nearest", behavior: "auto" });
  flow.start();
}

begin().catch((error) => {
  place("welcome").className = "notice bad";
  place("welcome").textContent = `The page can't reach its server: ${error.message}`;
});
