// @ts-check
/** Round pictures of people, the bot and chats. */

import { h } from "./dom.js";
import { flame, icon } from "./icons.js";

const HUES = 6;

/**
 * @param {{id: string, name: string, bot?: boolean}} who
 * @param {string} [size]  "s", "m"
 * @returns {HTMLElement}
 */
export function avatar(who, size = "m") {
  if (who.bot) return h("span", { class: `avatar avatar-bot avatar-${size}`, "aria-hidden": "true" }, flame(size === "s" ? 13 : 19));
  const letter = [...who.name.trim()][0] ?? "?";
  return h("span", { class: `avatar avatar-${size} hue-${hue(who.name)}`, "aria-hidden": "true" }, letter.toUpperCase());
}

/**
 * @param {import("./types.js").Chat} chat
 * @returns {HTMLElement}
 */
export function chatAvatar(chat) {
  const name = chat.kind === "p2p" ? "person" : chat.kind === "topic" ? "topic" : "group";
  return h("span", { class: `avatar avatar-chat kind-${chat.kind}`, "aria-hidden": "true" }, icon(name, 19));
}

/**
 * @param {string} name
 * @returns {number}
 */
function hue(name) {
  let sum = 0;
  for (const char of name) sum = (sum * 31 + (char.codePointAt(0) ?? 0)) % 9973;
  return sum % HUES;
}
