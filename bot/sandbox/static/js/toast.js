// @ts-check
/** Short notices at the edge of the page. They leave by themselves; a pointer on one keeps it. */

import { byId, h } from "./dom.js";
import { icon } from "./icons.js";

const STAY_MS = 4200;
const ICONS = { success: "check", error: "info", warning: "info", info: "info" };

/**
 * @param {string} text
 * @param {"info"|"success"|"warning"|"error"} [type]
 */
export function toast(text, type = "info") {
  if (!text) return;
  const kind = type in ICONS ? type : "info";
  const node = h("div", { class: `toast is-${kind}`, testid: "toast", role: kind === "error" ? "alert" : "status" }, icon(ICONS[kind], 17), h("span", {}, text));
  const box = byId("toasts");
  box.append(node);
  while (box.childElementCount > 3) box.firstElementChild?.remove();
  let timer = window.setTimeout(leave, STAY_MS);
  node.addEventListener("pointerenter", () => window.clearTimeout(timer));
  node.addEventListener("pointerleave", () => (timer = window.setTimeout(leave, STAY_MS / 2)));
  function leave() {
    node.classList.add("is-leaving");
    window.setTimeout(() => node.remove(), 220);
  }
}
