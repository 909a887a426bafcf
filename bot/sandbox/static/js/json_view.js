// @ts-check
/** Any JSON value as indented, softly coloured text, built from nodes. */

import { h } from "./dom.js";

const MAX_STRING = 4000;

/**
 * @param {any} value
 * @returns {HTMLPreElement}
 */
export function jsonView(value) {
  const pre = h("pre", { class: "json", tabindex: "0" });
  if (typeof value === "string") pre.append(value);
  else write(pre, value, 0);
  return pre;
}

/**
 * @param {Node} out
 * @param {any} value
 * @param {number} depth
 */
function write(out, value, depth) {
  if (Array.isArray(value)) return writeMany(out, value.map((item) => [null, item]), "[]", depth);
  if (value !== null && typeof value === "object") return writeMany(out, Object.entries(value), "{}", depth);
  out.appendChild(scalar(value));
}

/**
 * @param {Node} out
 * @param {Array<[string|null, any]>} entries
 * @param {string} brackets
 * @param {number} depth
 */
function writeMany(out, entries, brackets, depth) {
  if (!entries.length) return out.appendChild(document.createTextNode(brackets));
  const pad = "  ".repeat(depth + 1);
  out.appendChild(document.createTextNode(brackets[0]));
  entries.forEach(([key, item], index) => {
    out.appendChild(document.createTextNode(`${index ? "," : ""}\n${pad}`));
    if (key !== null) {
      out.appendChild(h("span", { class: "json-key" }, JSON.stringify(key)));
      out.appendChild(document.createTextNode(": "));
    }
    write(out, item, depth + 1);
  });
  return out.appendChild(document.createTextNode(`\n${"  ".repeat(depth)}${brackets[1]}`));
}

/**
 * @param {any} value
 * @returns {HTMLElement}
 */
function scalar(value) {
  const kind = value === null ? "null" : typeof value;
  const text = JSON.stringify(value) ?? String(value);
  return h("span", { class: `json-${kind}` }, text.length > MAX_STRING ? `${text.slice(0, MAX_STRING)}…` : text);
}
