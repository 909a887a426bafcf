// @ts-check
/** One webhook or API call in the side panel: a line that opens to its details. */

import { copyButton } from "./code_block.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { jsonView } from "./json_view.js";

/** @typedef {import("./types.js").Trace} Trace */

let serial = 0;

/**
 * @param {Trace} trace
 * @returns {boolean}
 */
export function isProblem(trace) {
  return trace.status === 0 || trace.status >= 400 || Boolean(trace.code);
}

/**
 * @param {Trace} trace
 * @param {import("./i18n.js").I18n} i18n
 * @returns {HTMLElement}
 */
export function traceRow(trace, i18n) {
  const id = `trace-${(serial += 1)}`;
  const inward = trace.direction === "webhook";
  const detail = h("div", { class: "trace-detail", id, hidden: true });
  const line = h(
    "button",
    { type: "button", class: "trace-line", "aria-expanded": "false", "aria-controls": id },
    h("span", { class: "trace-arrow" }, icon(inward ? "arrowIn" : "arrowOut", 15)),
    h("span", { class: "trace-what" }, h("b", {}, trace.title || trace.path), h("code", { title: `${trace.method} ${trace.path}` }, `${trace.method} ${shortPath(trace.path)}`)),
    h("span", { class: "trace-lock", title: trace.encrypted ? i18n.t("encrypted") : null }, trace.encrypted ? lock(i18n) : null),
    outcome(trace, i18n),
  );
  const row = h("li", { class: `trace ${inward ? "is-in" : "is-out"}`, testid: "trace-item", "data-direction": trace.direction }, line, detail);
  row.classList.toggle("is-problem", isProblem(trace));
  line.addEventListener("click", () => {
    const open = detail.hidden;
    if (open && !detail.firstChild) detail.append(...details(trace, i18n));
    detail.hidden = !open;
    line.setAttribute("aria-expanded", String(open));
  });
  return row;
}

/** @param {import("./i18n.js").I18n} i18n */
function lock(i18n) {
  return [icon("lock", 13), h("span", { class: "visually-hidden" }, i18n.t("encrypted"))];
}

/**
 * @param {Trace} trace
 * @param {import("./i18n.js").I18n} i18n
 */
function outcome(trace, i18n) {
  const code = trace.code ? ` · ${trace.code}` : "";
  return h(
    "span",
    { class: "trace-outcome" },
    h("span", { class: "trace-status" }, trace.status ? `${trace.status}${code}` : "—"),
    typeof trace.ms === "number" ? h("span", { class: "trace-ms" }, i18n.t("duration", { ms: trace.ms < 10 ? Number(trace.ms.toFixed(1)) : Math.round(trace.ms) })) : null,
  );
}

/**
 * @param {Trace} trace
 * @param {import("./i18n.js").I18n} i18n
 * @returns {Node[]}
 */
function details(trace, i18n) {
  const at = new Date(trace.at);
  const meta = h("p", { class: "trace-meta" }, `${at.toLocaleTimeString("en-GB")}.${String(at.getMilliseconds()).padStart(3, "0")} · ${trace.method} ${trace.path}`);
  const parts = sections(parsed(trace.detail));
  return [meta, ...parts.flatMap(([name, value]) => section(name, value, i18n))];
}

/**
 * @param {string} path
 * @returns {string} without the prefix that all calls share, and with long ids cut
 */
function shortPath(path) {
  return path.replace(/^\/(open-apis|v1\.0)(?=\/)/, "").replace(/[\w-]{17,}/g, (id) => `${id.slice(0, 5)}…`);
}

/**
 * @param {any} text
 * @returns {any} the value that JSON text holds; anything else as it is (the server cuts long details, which breaks them)
 */
function parsed(text) {
  if (typeof text !== "string" || !/^\s*[{[]/.test(text)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/**
 * @param {any} detail
 * @returns {Array<[string, any]>}
 */
function sections(detail) {
  if (detail === undefined || detail === null || detail === "") return [];
  if (typeof detail !== "object" || Array.isArray(detail)) return [["", detail]];
  const entries = Object.entries(detail).map(([name, value]) => /** @type {[string, any]} */ ([name, parsed(value)]));
  const flat = entries.every(([, value]) => value === null || typeof value !== "object");
  return flat ? [["", detail]] : entries;
}

/**
 * @param {string} name
 * @param {any} value
 * @param {import("./i18n.js").I18n} i18n
 * @returns {Node[]}
 */
function section(name, value, i18n) {
  const known = ["request", "response", "headers"].includes(name) ? i18n.t(name) : name.replace(/_/g, " ");
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return [h("div", { class: "trace-section" }, h("h4", {}, known), copyButton(text, i18n.t)), jsonView(value)];
}

/**
 * @param {Trace} trace
 * @returns {string} lower-case text to search in
 */
export function haystack(trace) {
  const detail = typeof trace.detail === "string" ? trace.detail : JSON.stringify(trace.detail ?? "");
  return `${trace.title ?? ""} ${trace.method} ${trace.path} ${trace.status} ${trace.code ?? ""} ${detail}`.toLowerCase();
}
