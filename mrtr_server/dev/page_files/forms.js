// Forms made from JSON schemas. A field is {element, read, focus, at}: read returns the value, or NOTHING, or throws Misfit;
// at returns what shows a message at the field of a path within it, if there is one.
import { button, el, newId } from "./dom.js";
import { misses } from "./patterns.js";
import { branchTitle, kindOf } from "./schemas.js";

export const NOTHING = Symbol("nothing was given");

export class Misfit extends Error {
  constructor(message, field) {
    super(message);
    this.field = field;
  }
}

/**
 * Return a form for an object: its element; `read()`, which returns the object, or null after it has shown what is wrong;
 * and `show(problems)`, which shows what somebody else finds wrong, by the path of each field, and says whether all have one.
 */
export function formFor(schema, { label, given } = {}) {
  const root = schema ?? {};
  const isObject = kindOf(root, root).kind === "object";
  let fields = isObject ? objectField(root, root, given ?? {}, 0) : null;
  const hasNothing = !isObject && (root.type === "object" || !Object.keys(root).length) && !root.additionalProperties;
  const shapes = el("div", { class: "fields" }, fields?.element ?? (hasNothing ? el("p", { class: "hint" }, "It takes no arguments.") : null));
  const problem = el("p", { class: "problem", role: "alert" });
  let raw = null;
  const toggle = button("Edit as JSON", () => (raw ? useFields() : useJson()), { class: "small quiet", "aria-pressed": "false" });
  const element = el("div", { class: "form", role: "group", "aria-label": label }, shapes, el("div", { class: "form-end" }, toggle), problem);

  function useJson() {
    let value = given ?? {};
    try {
      if (fields) value = fields.read();
    } catch {
      // what was typed so far does not fit, and JSON begins with what was given
    }
    raw = jsonField(value === NOTHING ? {} : value, "Arguments as JSON");
    shapes.replaceChildren(raw.element);
    toggle.textContent = "Back to the form";
    toggle.setAttribute("aria-pressed", "true");
    toggle.hidden = !isObject;
    raw.focus();
  }

  function useFields() {
    let value = {};
    try {
      value = raw.read();
    } catch (error) {
      problem.textContent = error.message;
      return;
    }
    problem.textContent = "";
    raw = null;
    fields = objectField(root, root, value ?? {}, 0);
    shapes.replaceChildren(fields.element);
    toggle.textContent = "Edit as JSON";
    toggle.setAttribute("aria-pressed", "false");
  }

  if (!isObject && !hasNothing) useJson();
  if (hasNothing) toggle.hidden = false;

  function clear() {
    problem.textContent = "";
    for (const each of element.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
    for (const each of element.querySelectorAll(".field-problem")) each.textContent = "";
  }

  function show(problems) {
    clear();
    const places = problems.map(({ path }) => (raw ? undefined : fields?.at(path)));
    // The first one is shown last, so that it keeps the focus.
    for (const [at, { message }] of [...problems.entries()].reverse()) places[at]?.(message);
    return problems.length > 0 && places.every(Boolean);
  }

  function read() {
    clear();
    try {
      const source = raw ?? fields;
      const value = source ? source.read() : {};
      if (value === NOTHING) return {};
      if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Misfit("Give a JSON object: {…}", null);
      return value;
    } catch (error) {
      if (!(error instanceof Misfit)) throw error;
      problem.textContent = error.field ? "Something is missing or does not fit: see above." : error.message;
      if (error.field) error.field(error.message);
      return null;
    }
  }

  /** Focus where Enter sends: the first field that is no list of choices, which would open; otherwise the button that sends. */
  function focus() {
    const written = [...element.querySelectorAll("input, textarea")].find((each) => each.checkVisibility());
    (written ?? element.closest("form")?.querySelector("button[type=submit]") ?? toggle).focus();
  }

  return { element, read, show, focus };
}

function field(name, schema, required, root, value, depth) {
  const { kind, schema: plain, nullable, choices, branches } = kindOf(schema, root, depth);
  const about = { name, title: plain.title ?? name, description: plain.description, required };
  const given = value === undefined ? plain.default : value;
  if (kind === "object") return objectField(plain, root, given, depth + 1, about);
  if (kind === "list") return listField(plain, root, given, depth + 1, about);
  if (kind === "union") return unionField(plain, branches, root, given, depth + 1, about);
  if (kind === "choices") return choicesField(choices, given, about);
  if (kind === "choice") return choiceField(choices, given, about);
  if (kind === "const") return constField(plain, about);
  if (kind === "boolean") return booleanField(given, about);
  if (kind === "json") return labelled(jsonField(given, about.title, required), about, "JSON");
  return inputField(kind, plain, given, { ...about, nullable });
}

function labelled(inner, about, note = "") {
  const id = inner.control.id;
  const hint = el("p", { class: "hint", id: `${id}-hint` }, ...[about.description].filter(Boolean));
  const problem = el("p", { class: "field-problem", id: `${id}-problem`, role: "alert" });
  const marks = [note, about.required ? "" : "optional"].filter(Boolean).join(", ");
  inner.control.setAttribute("aria-describedby", `${id}-hint ${id}-problem`);
  if (about.required) inner.control.setAttribute("aria-required", "true");
  const element = el("div", { class: "field" },
    el("label", { for: id }, about.title, el("span", { class: "mark" }, marks ? ` ${marks}` : "")),
    hint.textContent ? hint : null, inner.element, problem);
  if (!hint.textContent) inner.control.setAttribute("aria-describedby", `${id}-problem`);
  const show = (message) => {
    problem.textContent = message;
    inner.control.setAttribute("aria-invalid", "true");
    inner.control.focus();
    element.scrollIntoView({ block: "nearest" }); // it may have had the focus before
  };
  return {
    element,
    focus: () => inner.control.focus(),
    at: (path) => (path.length ? undefined : show),
    read() {
      const found = inner.read((message) => new Misfit(message, show));
      if (found === NOTHING && about.required) throw new Misfit("Please fill this in.", show);
      return found;
    },
  };
}

const INPUT_TYPES = { email: "email", uri: "url", date: "date" };

function inputField(kind, schema, given, about) {
  const isNumber = kind !== "string";
  const long = !isNumber && (schema.maxLength > 200 || String(given ?? "").length > 80);
  const control = el(long ? "textarea" : "input", {
    id: newId("field"),
    type: long ? null : isNumber ? "text" : INPUT_TYPES[schema.format] ?? "text",
    inputmode: kind === "integer" ? "numeric" : kind === "number" ? "decimal" : null,
    rows: long ? 4 : null,
    "data-name": about.name,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: schema.format === "date-time" ? "2026-07-28T12:00:00Z" : Array.isArray(schema.examples) ? String(schema.examples[0]) : null,
  });
  control.value = given === undefined || given === null ? "" : String(given);
  const inner = { element: control, control, read: (misfit) => (isNumber ? readNumber : readText)(control, kind, schema, misfit) };
  return labelled(inner, about, [isNumber ? kind : schema.format ?? "", range(schema)].filter(Boolean).join(", "));
}

function range(schema) {
  const [low, high] = [schema.minimum ?? schema.exclusiveMinimum, schema.maximum ?? schema.exclusiveMaximum];
  if (low !== undefined && high !== undefined) return `${low} to ${high}`;
  if (low !== undefined) return `at least ${low}`;
  return high !== undefined ? `at most ${high}` : "";
}

function readNumber(control, kind, schema, misfit) {
  const text = control.value.trim();
  if (!text) return NOTHING;
  const number = Number(text);
  if (!Number.isFinite(number)) throw misfit("Please give a number.");
  if (kind === "integer" && !Number.isInteger(number)) throw misfit("Please give a whole number.");
  return number;
}

function readText(control, kind, schema, misfit) {
  const text = control.value;
  if (text === "") return NOTHING;
  if (!control.validity.valid) throw misfit(control.validationMessage);
  if (schema.minLength && [...text].length < schema.minLength) throw misfit(`Please give at least ${schema.minLength} characters.`);
  if (schema.maxLength && [...text].length > schema.maxLength) throw misfit(`Please give at most ${schema.maxLength} characters.`);
  if (misses(schema.pattern, text)) throw misfit(`This has not the form that is wanted: ${schema.pattern}`);
  return text;
}

function booleanField(given, about) {
  if (about.required || typeof given === "boolean") {
    const control = el("input", { type: "checkbox", id: newId("field") });
    control.checked = given === true;
    const hint = about.description ? el("p", { class: "hint" }, about.description) : null;
    const element = el("div", { class: "field check" }, el("label", { for: control.id }, control, " ", about.title), hint);
    return { element, focus: () => control.focus(), at() {}, read: () => control.checked };
  }
  return choiceField([{ value: true, title: "yes" }, { value: false, title: "no" }], given, about);
}

function choiceField(choices, given, about) {
  const control = el("select", { id: newId("field") }, el("option", { value: "" }, about.required ? "Choose…" : "–"),
    choices.map((choice, at) => el("option", { value: at }, choice.title)));
  const chosen = choices.findIndex((choice) => choice.value === given);
  if (chosen >= 0) control.value = String(chosen);
  return labelled({ element: control, control, read: () => (control.value === "" ? NOTHING : choices[Number(control.value)].value) }, about);
}

function choicesField(choices, given, about) {
  const id = newId("field");
  const boxes = choices.map((choice) => {
    const box = el("input", { type: "checkbox" });
    box.checked = Array.isArray(given) && given.includes(choice.value);
    return { box, choice };
  });
  const element = el("fieldset", { class: "field", id }, legend(about),
    boxes.map(({ box, choice }) => el("label", { class: "choice" }, box, " ", choice.title)));
  return {
    element,
    focus: () => boxes[0]?.box.focus(),
    at() {},
    read() {
      const chosen = boxes.filter(({ box }) => box.checked).map(({ choice }) => choice.value);
      return chosen.length || about.required ? chosen : NOTHING;
    },
  };
}

function legend(about) {
  const hint = about.description ? el("span", { class: "hint" }, about.description) : null;
  return el("legend", {}, about.title, about.required ? null : el("span", { class: "mark" }, " optional"), hint);
}

function constField(schema, about) {
  const element = el("p", { class: "field hint" }, `${about.title}: ${JSON.stringify(schema.const)}`);
  return { element, focus() {}, at() {}, read: () => schema.const };
}

function jsonField(given, label) {
  const control = el("textarea", { id: newId("field"), class: "code", rows: 5, spellcheck: "false", "aria-label": label });
  control.value = given === undefined || given === null ? "" : JSON.stringify(given, null, 2);
  return {
    element: control,
    control,
    focus: () => control.focus(),
    read(misfit = (message) => new Misfit(message, null)) {
      if (!control.value.trim()) return NOTHING;
      try {
        return JSON.parse(control.value);
      } catch (error) {
        throw misfit(`This is not JSON: ${error.message}`);
      }
    },
  };
}

function objectField(schema, root, given, depth, about = null) {
  const wanted = new Set(schema.required ?? []);
  const fields = Object.entries(schema.properties ?? {}).map(([name, each]) => [name, field(name, each, wanted.has(name), root, given?.[name], depth)]);
  const inner = el("div", { class: "fields" }, fields.map(([, each]) => each.element));
  const read = () => {
    const value = {};
    for (const [name, each] of fields) {
      const found = each.read();
      if (found !== NOTHING) value[name] = found;
    }
    return value;
  };
  const focus = () => fields[0]?.[1].focus();
  const at = ([first, ...rest]) => fields.find(([name]) => name === first)?.[1].at(rest);
  if (about === null) return { element: inner, read, focus, at };
  if (about.required) return { element: el("fieldset", { class: "field" }, legend(about), inner), read, focus, at };
  const use = el("input", { type: "checkbox", on: { change: () => (inner.hidden = !use.checked) } });
  use.checked = given !== undefined && given !== null;
  inner.hidden = !use.checked;
  const element = el("fieldset", { class: "field" }, legend(about), el("label", { class: "choice" }, use, ` Give ${about.title}`), inner);
  return { element, focus: () => use.focus(), at, read: () => (use.checked ? read() : NOTHING) };
}

function listField(schema, root, given, depth, about) {
  const rows = [];
  const list = el("ol", { class: "rows" });
  const add = button(`Add to ${about.title}`, () => addRow(undefined).focus(), { class: "small" });
  function addRow(value) {
    const each = field(`${about.title} ${rows.length + 1}`, { ...schema.items }, true, root, value, depth);
    const remove = button("Remove", () => {
      rows.splice(rows.indexOf(each), 1);
      row.remove();
      add.focus();
    }, { class: "small quiet", "aria-label": `Remove an entry of ${about.title}` });
    const row = el("li", {}, each.element, remove);
    rows.push(each);
    list.append(row);
    return each;
  }
  for (const value of Array.isArray(given) ? given : []) addRow(value);
  const element = el("fieldset", { class: "field" }, legend(about), list, add);
  return {
    element,
    focus: () => add.focus(),
    at: ([first, ...rest]) => rows[Number(first)]?.at(rest),
    read: () => (rows.length || about.required ? rows.map((row) => row.read()) : NOTHING),
  };
}

function unionField(schema, branches, root, given, depth, about) {
  const id = newId("field");
  const select = el("select", { id, on: { change: () => show() } }, about.required ? null : el("option", { value: "" }, "–"),
    branches.map((branch, at) => el("option", { value: at }, branchTitle(branch, root, at))));
  const place = el("div", { class: "fields" });
  let inner = null;
  const fits = branches.findIndex((branch) => fitsType(given, kindOf(branch, root).kind));
  if (given !== undefined && given !== null && fits >= 0) select.value = String(fits);
  function show() {
    inner = null;
    if (select.value !== "") {
      const branch = branches[Number(select.value)];
      inner = field(branchTitle(branch, root, Number(select.value)), branch, true, root, select.value === String(fits) ? given : undefined, depth);
    }
    place.replaceChildren(...(inner ? [inner.element] : []));
  }
  show();
  const element = el("fieldset", { class: "field" }, legend(about), el("label", { class: "choice", for: id }, "Kind: ", select), place);
  return { element, focus: () => select.focus(), at() {}, read: () => (inner ? inner.read() : NOTHING) };
}

function fitsType(value, kind) {
  if (Array.isArray(value)) return ["list", "choices", "json"].includes(kind);
  if (value !== null && typeof value === "object") return ["object", "json"].includes(kind);
  return { string: ["string", "choice"], number: ["number", "integer", "choice"], boolean: ["boolean"] }[typeof value]?.includes(kind) ?? false;
}
