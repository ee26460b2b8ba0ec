// JSON as tables, where it is a list of records.
import { el } from "./dom.js";

const MOST_ROWS = 100;
const MOST_COLUMNS = 12;
const LONGEST = 160; // characters of a cell

/** Return a table of a list of records, or of the one list that an object holds; null for anything else. */
export function tableOf(value) {
  const records = recordsOf(value);
  if (records === null) return null;
  const all = [...new Set(records.flatMap(Object.keys))];
  const [columns, rows] = [all.slice(0, MOST_COLUMNS), records.slice(0, MOST_ROWS)];
  const left = [rest(records.length - rows.length, "record"), rest(all.length - columns.length, "column")].filter(Boolean).join(" and ");
  return el("div", {},
    el("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Records" }, el("table", { class: "records" },
      el("thead", {}, el("tr", {}, columns.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, rows.map((record) => el("tr", {}, columns.map((name) => el("td", {}, cell(record[name])))))))),
    left ? el("p", { class: "hint" }, `${left} more: see the JSON.`) : null);
}

function recordsOf(value) {
  const inner = isRecord(value) && Object.keys(value).length === 1 ? Object.values(value)[0] : value;
  return Array.isArray(inner) && inner.length && inner.every(isRecord) && inner.some((each) => Object.keys(each).length) ? inner : null;
}

const isRecord = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

const rest = (count, what) => (count > 0 ? `${count} ${what}${count > 1 ? "s" : ""}` : "");

function cell(value) {
  if (value === undefined || value === null) return "–";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
}
