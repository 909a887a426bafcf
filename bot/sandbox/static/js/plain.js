// @ts-check
/** A message as one line or as text to copy. */

import { textOf } from "./card.js";

/**
 * @typedef {import("./types.js").Message} Message
 * @typedef {import("./types.js").CardElement} CardElement
 */

/**
 * @param {Message} message
 * @param {(key: string) => string} t
 * @returns {string} its whole text
 */
export function plainText(message, t) {
  if (message.kind !== "card" || !message.card) return withNames(message);
  const parts = message.card.elements.filter((element) => element.tag !== "button").flatMap(texts);
  return parts.join("\n").trim() || message.card.summary || message.text || (message.card.streaming ? t("generatingShort") : "");
}

/**
 * @param {Message} message
 * @param {(key: string, values?: Record<string, string>) => string} t
 * @returns {string} one short line for a list
 */
export function snippet(message, t) {
  if (message.recalled) return t("recalledBy", { name: message.sender.name });
  if (message.card?.streaming) return t("generatingShort");
  const line = plainText(message, t).replace(/[*_`#>|]+/g, "").replace(/\s+/g, " ").trim();
  return line.slice(0, 80);
}

/** @param {Message} message */
function withNames(message) {
  let text = message.text;
  for (const mention of message.mentions ?? []) {
    if (mention.key && mention.name) text = text.split(mention.key).join(`@${mention.name}`);
  }
  return text;
}

/**
 * @param {CardElement} element
 * @returns {string[]}
 */
function texts(element) {
  if (element.elements?.length) return element.elements.flatMap(texts);
  return element.tag === "hr" || element.tag === "button" ? [] : [textOf(element)];
}
