// "Client settings": who calls, in which version of the protocol, and what this client can do.
import { ABILITIES } from "./app_view.js";
import { dialects } from "./dialects.js";
import { el, newId } from "./dom.js";
import { KINDS } from "./questions.js";

const CAPABILITIES = {
  ...Object.fromEntries(KINDS.map((kind) => [kind.name, kind.title])),
  tasks: "Tasks",
  apps: "Pages of apps",
};

/**
 * Show the settings of a client.
 *
 * @param menu the element that opens, with the form in it.
 * @param users the users that can be chosen; one that is typed is added.
 * @param onChange is told when what the server lists may be another.
 */
export function showSettings(menu, client, users, onChange) {
  const panel = menu.querySelector("form");
  panel.addEventListener("submit", (event) => event.preventDefault());
  panel.append(userField(client, users, onChange), tokenField(client, onChange), versionField(client, onChange),
    el("fieldset", { class: "field" }, el("legend", {}, "This client can do"), boxesOf(CAPABILITIES, client.can, onChange)),
    el("fieldset", { class: "field" }, el("legend", {}, "For pages of apps, it"), boxesOf(ABILITIES, client.host, () => {}),
      client.sandbox ? null : el("p", { class: "hint" }, "Pages of apps are drawn at localhost and 127.0.0.1 alone: their sandbox needs a second name of this machine.")));
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}

function userField(client, users, onChange) {
  const list = el("datalist", { id: newId("users") }, users.map((name) => el("option", { value: name })));
  const user = el("input", { id: newId("set"), list: list.id, maxlength: 64, placeholder: "no user", autocomplete: "off", disabled: Boolean(client.users), on: { change() {
    client.user = user.value.trim();
    if (client.user && !users.includes(client.user)) users.push(client.user);
    onChange();
  } } });
  const hint = client.inside ? `Other users and journals are off. ${client.inside}` : client.users || "Any name: the server takes it for the user, from this page on this machine alone. “alice” and “bob” are only examples.";
  return el("div", { class: "field" }, el("label", { for: user.id }, "Call as"), user, list, el("p", { class: "hint" }, hint));
}

function tokenField(client, onChange) {
  const token = el("input", { id: newId("set"), type: "password", autocomplete: "off", spellcheck: "false", on: { change() {
    client.token = token.value.trim();
    onChange();
  } } });
  return el("div", { class: "field" }, el("label", { for: token.id }, "Bearer token"), token, el("p", { class: "hint" }, "Kept until you leave this page."));
}

function versionField(client, onChange) {
  const version = el("select", { id: newId("set"), on: { change() {
    client.dialect = dialects[Number(version.value)];
    onChange();
  } } }, dialects.map((each, at) => el("option", { value: at }, each.title)));
  return el("div", { class: "field" }, el("label", { for: version.id }, "Protocol version"), version);
}

function boxesOf(named, values, onChange) {
  return Object.entries(named).map(([name, title]) => {
    const box = el("input", { type: "checkbox", on: { change() {
      values[name] = box.checked;
      onChange();
    } } });
    box.checked = values[name];
    return el("label", { class: "choice" }, box, ` ${title}`);
  });
}
