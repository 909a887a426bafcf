// @ts-check
/** A block of code with its language and a copy button. */

import { copyText, h } from "./dom.js";
import { icon } from "./icons.js";

/**
 * @param {string} code
 * @param {string} info  the words after the fence; the first is the language
 * @param {(key: string) => string} t
 * @returns {HTMLElement}
 */
export function codeBlock(code, info, t) {
  const text = code.replace(/\n$/, "");
  return h(
    "div",
    { class: "code" },
    h("div", { class: "code-head" }, h("span", {}, (info ?? "").trim().split(/\s+/)[0] || "text"), copyButton(text, t)),
    h("pre", { tabindex: "0" }, h("code", {}, text)),
  );
}

/**
 * @param {string} text
 * @param {(key: string) => string} t
 * @returns {HTMLButtonElement}
 */
export function copyButton(text, t) {
  const label = h("span", {}, t("copy"));
  const button = h("button", { class: "ghost copy", type: "button", onclick: copy }, icon("copy", 14), label);
  async function copy() {
    if (!(await copyText(text))) return;
    button.replaceChildren(icon("check", 14), h("span", {}, t("copied")));
    window.setTimeout(() => button.replaceChildren(icon("copy", 14), label), 1400);
  }
  return button;
}
