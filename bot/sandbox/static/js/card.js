// @ts-check
/**
 * One card: its elements, kept in place between updates (a button keeps its focus, a text grows), and the mark that the bot
 * is still writing. Owns one typewriter per markdown element.
 */

import { h } from "./dom.js";
import { icon } from "./icons.js";
import { renderMarkdown } from "./markdown.js";
import { Typewriter } from "./typewriter.js";

/**
 * @typedef {import("./types.js").CardElement} CardElement
 * @typedef {import("./types.js").Message} Message
 * @typedef {{updates: number, seenAt: number, tookS: number}} CardStats  what this page saw of one card's life
 * @typedef {{i18n: import("./i18n.js").I18n, names: Map<string, string>, stats: Map<string, CardStats>,
 *   onPress: (messageId: string, value: any) => Promise<void>}} CardContext
 * @typedef {{node: HTMLElement, json: string, typewriter?: Typewriter}} Part
 */

const BUTTON_ICONS = { stop: "stop", regenerate: "again", retry: "again", new_topic: "plus", new: "plus" };

export class CardView {
  /**
   * @param {CardContext} context
   * @param {boolean} [fresh]  type out the first text too, instead of showing it at once
   */
  constructor(context, fresh = false) {
    this.context = context;
    this.fresh = fresh;
    /** @type {Map<string, Part>} */
    this.parts = new Map();
    this.title = h("header", { class: "card-title", hidden: true });
    this.body = h("div", { class: "card-body" });
    this.status = h("footer", { class: "card-status" });
    this.node = h("div", { class: "card", testid: "card" }, this.title, this.body, this.status);
    this.messageId = "";
    this.wasStreaming = false;
    /** @type {CardStats} */
    this.stats = { updates: 0, seenAt: 0, tookS: 0 };
  }

  /** @param {Message} message */
  update(message) {
    const card = message.card ?? { elements: [{ tag: "markdown", content: message.text }], streaming: false };
    if (!this.messageId) this.adopt(message.id);
    else this.count(card.streaming);
    this.wasStreaming = card.streaming;
    const keep = new Set();
    card.elements.forEach((element, index) => {
      const key = `${element.tag}:${element.element_id ?? index}`;
      keep.add(key);
      const part = this.part(key, element, card);
      if (this.body.children[index] !== part.node) this.body.insertBefore(part.node, this.body.children[index] ?? null);
    });
    for (const [key, part] of this.parts) if (!keep.has(key)) this.drop(key, part);
    this.title.hidden = !card.title;
    this.title.textContent = card.title ?? "";
    this.node.classList.toggle("is-streaming", card.streaming);
    this.showStatus(card.streaming);
  }

  /** @param {string} id  the card's message; what an earlier view of it counted goes on */
  adopt(id) {
    this.messageId = id;
    const known = this.context.stats.get(id);
    if (known) this.stats = known;
    else if (this.fresh) this.stats.seenAt = performance.now();
    this.context.stats.set(id, this.stats);
  }

  /** @param {boolean} streaming */
  count(streaming) {
    this.stats.updates += 1;
    if (this.wasStreaming && !streaming && this.stats.seenAt) this.stats.tookS = (performance.now() - this.stats.seenAt) / 1000;
  }

  /** @param {boolean} streaming */
  showStatus(streaming) {
    const { t } = this.context.i18n;
    const { updates, tookS } = this.stats;
    this.status.hidden = !streaming && !tookS;
    if (streaming) {
      this.status.setAttribute("data-testid", "card-streaming");
      this.status.replaceChildren(dots(), h("b", {}, t("generating")), updates ? h("span", {}, t("updates", { n: updates })) : "");
      return;
    }
    this.status.removeAttribute("data-testid");
    if (tookS) this.status.replaceChildren(icon("check", 13), h("span", {}, t("answered", { s: tookS.toFixed(1), n: updates })));
  }

  /**
   * @param {string} key
   * @param {CardElement} element
   * @param {import("./types.js").Card} card
   * @returns {Part}
   */
  part(key, element, card) {
    const json = JSON.stringify(element);
    let part = this.parts.get(key);
    if (!part) {
      part = isText(element) ? this.textPart(element) : { node: this.build(element), json };
      this.parts.set(key, part);
    } else if (!part.typewriter && part.json !== json) {
      const node = this.build(element);
      part.node.replaceWith(node);
      part.node = node;
    }
    part.json = json;
    part.typewriter?.set(textOf(element), { streaming: card.streaming, config: hasPace(card) ? card.streaming_config : undefined });
    return part;
  }

  /**
   * @param {CardElement} element
   * @returns {Part}
   */
  textPart(element) {
    const node = h("div", { class: "md" });
    const typewriter = new Typewriter((text, done) => {
      renderMarkdown(node, text, { names: this.context.names, t: this.context.i18n.t, glue: element.glue });
      node.classList.toggle("is-typing", !done || this.wasStreaming);
    });
    if (!this.fresh) typewriter.showFirstAtOnce();
    return { node, json: "", typewriter };
  }

  /**
   * @param {CardElement} element
   * @returns {HTMLElement}
   */
  build(element) {
    if (element.tag === "hr") return h("hr");
    if (element.tag === "button") return this.button(element);
    const inner = [...(element.elements ?? []), ...(element.buttons ?? [])];
    if (inner.length) return h("div", { class: `card-${element.tag === "column_set" ? "columns" : "group"}` }, inner.map((item) => this.build(item)));
    const node = h("div", { class: element.tag === "note" || element.tag === "plain_text" ? "md note" : "md" });
    renderMarkdown(node, textOf(element), { names: this.context.names, t: this.context.i18n.t, glue: element.glue });
    return node;
  }

  /**
   * @param {CardElement} element
   * @returns {HTMLButtonElement}
   */
  button(element) {
    const value = element.value ?? {};
    const action = actionOf(element, value);
    const name = BUTTON_ICONS[/** @type {keyof typeof BUTTON_ICONS} */ (action)];
    const button = h(
      "button",
      { type: "button", class: `card-button type-${element.type ?? "default"}`, testid: `button-${action}`, disabled: element.disabled },
      name ? icon(name, 14) : null,
      textOf(element),
    );
    const press = async () => {
      if (button.getAttribute("aria-busy") === "true") return;
      button.setAttribute("aria-busy", "true");
      await this.context.onPress(this.messageId, value);
      button.removeAttribute("aria-busy");
    };
    // A growing text moves the button: a mouse that goes down on it and up beside it would make no click.
    let byMouse = false;
    button.addEventListener("pointerdown", (event) => {
      byMouse = event.pointerType === "mouse" && event.button === 0;
      if (byMouse) void press();
    });
    button.addEventListener("click", () => {
      if (!byMouse) void press();
      byMouse = false;
    });
    return button;
  }

  /**
   * @param {string} key
   * @param {Part} part
   */
  drop(key, part) {
    part.typewriter?.dispose();
    part.node.remove();
    this.parts.delete(key);
  }

  dispose() {
    for (const part of this.parts.values()) part.typewriter?.dispose();
  }
}

/**
 * @param {import("./types.js").Card} card
 * @returns {boolean} whether the card says how fast to type
 */
function hasPace(card) {
  return card.streaming_config?.print_frequency_ms !== undefined || card.streaming_config?.print_step !== undefined;
}

/** @returns {HTMLElement} three embers that breathe */
export function dots() {
  return h("span", { class: "dots", "aria-hidden": "true" }, h("i"), h("i"), h("i"));
}

/**
 * @param {CardElement} element
 * @returns {boolean}
 */
function isText(element) {
  return element.tag === "markdown" || element.tag === "lark_md" || (element.tag === "div" && !element.elements);
}

/**
 * @param {CardElement} element
 * @returns {string}
 */
export function textOf(element) {
  const text = element.content ?? element.text ?? "";
  return typeof text === "string" ? text : text.content ?? "";
}

/**
 * The short name of what a button does, for its test id and icon.
 * @param {CardElement} element
 * @param {any} value
 * @returns {string}
 */
function actionOf(element, value) {
  const named = typeof value === "string" ? value : value?.action ?? value?.act ?? value?.do ?? value?.kind ?? element.element_id ?? textOf(element);
  return String(named).trim().toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "_");
}
