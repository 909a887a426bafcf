// @ts-check
/** One message: picture, name, quote, bubble or card, reactions and the small tools that appear beside it. */

import { avatar } from "./avatar.js";
import { CardView, dots } from "./card.js";
import { copyText, fill, h } from "./dom.js";
import { icon } from "./icons.js";
import { renderMarkdown, safeLink } from "./markdown.js";
import { plainText } from "./plain.js";

/**
 * @typedef {import("./types.js").Message} Message
 * @typedef {import("./card.js").CardContext & {store: import("./store.js").Store,
 *   onReply: (message: Message) => void, onRecall: (message: Message) => void, onJump: (id: string) => void}} MessageContext
 */

const EMOJI = {
  THUMBSUP: "👍", OK: "👌", DONE: "✅", HEART: "❤️", SMILE: "🙂", OnIt: "🙋", OneSecond: "⏳", THINKING: "🤔", LGTM: "👌",
  EYES: "👀", ERROR: "⚠️", CrossMark: "❌", THANKS: "🙏", APPLAUSE: "👏", PARTY: "🎉",
}; // prettier-ignore

export class MessageView {
  /**
   * @param {Message} message
   * @param {MessageContext} context
   * @param {boolean} [fresh]  it came just now
   */
  constructor(message, context, fresh = false) {
    this.context = context;
    this.fresh = fresh;
    this.message = message;
    /** @type {CardView|null} */
    this.card = null;
    this.main = h("div", { class: "msg-main" });
    this.bubble = h("div", { class: "bubble" });
    this.reactions = h("div", { class: "reactions" });
    this.node = h("article", { class: fresh ? "msg is-fresh" : "msg", testid: "message", "data-id": message.id, "data-kind": message.kind });
    this.update(message);
  }

  /** @param {Message} message */
  update(message) {
    const wasRecalled = this.message.recalled;
    this.message = message;
    if (message.recalled) return this.showRecalled();
    if (!this.node.firstChild || wasRecalled) this.buildFrame();
    this.showBody();
    this.showReactions();
  }

  /** Draws the frame anew for another speaker; the bubble and its card stay the same nodes. */
  reframe() {
    if (this.message.recalled) this.showRecalled();
    else this.buildFrame();
  }

  buildFrame() {
    const { message } = this;
    const own = message.sender.id === this.context.store.speakerId;
    this.node.classList.toggle("is-own", own);
    this.node.classList.toggle("is-bot", message.sender.bot);
    this.node.classList.remove("is-recalled");
    const time = h("time", { datetime: new Date(message.at_ms).toISOString() }, this.context.i18n.time(message.at_ms));
    const tag = message.sender.bot ? h("span", { class: "tag" }, this.context.i18n.t("botTag")) : null;
    const head = h("header", { class: "msg-head" }, h("b", {}, message.sender.name), tag, time);
    fill(this.main, head, this.quote(), h("div", { class: "bubble-row" }, this.bubble, this.tools(own)), this.reactions);
    fill(this.node, avatar(message.sender), this.main);
  }

  showBody() {
    const { message } = this;
    if (message.kind === "card") {
      if (!this.card) {
        this.card = new CardView(this.context, this.fresh);
        fill(this.bubble, this.card.node);
      }
      this.card.update(message);
      return;
    }
    this.bubble.classList.toggle("md", message.sender.bot || message.kind === "post");
    if (message.sender.bot || message.kind === "post") {
      renderMarkdown(this.bubble, message.text, { names: this.context.names, t: this.context.i18n.t });
    } else fill(this.bubble, userText(message));
  }

  showRecalled() {
    const { t } = this.context.i18n;
    const own = this.message.sender.id === this.context.store.speakerId;
    this.card?.dispose();
    this.card = null;
    this.node.classList.add("is-recalled");
    this.node.classList.remove("is-own", "is-bot");
    fill(this.node, h("p", {}, icon("recall", 14), own ? t("recalledOwn") : t("recalledBy", { name: this.message.sender.name })));
  }

  showReactions() {
    const counts = new Map();
    for (const { emoji } of this.message.reactions ?? []) counts.set(emoji, (counts.get(emoji) ?? 0) + 1);
    fill(this.reactions, [...counts].map(([emoji, n]) => this.reaction(emoji, n)));
  }

  /**
   * @param {string} emoji
   * @param {number} n
   */
  reaction(emoji, n) {
    const by = (this.message.reactions ?? []).filter((one) => one.emoji === emoji).map((one) => one.by).join(", ");
    if (emoji === "Typing") return h("span", { class: "reaction is-typing", testid: "typing" }, dots(), this.context.i18n.t("typing", { bot: by }));
    const face = EMOJI[/** @type {keyof typeof EMOJI} */ (emoji)] ?? emoji;
    return h("span", { class: "reaction", title: `${emoji} · ${by}` }, face, n > 1 ? ` ${n}` : null);
  }

  /** @returns {HTMLElement|null} what this message answers */
  quote() {
    const id = this.message.reply_to;
    if (!id || this.context.store.chat(this.message.chat_id)?.kind === "topic") return null;
    const target = this.context.store.messages.get(id);
    if (!target) return null;
    const { t } = this.context.i18n;
    const text = target.recalled ? t("recalledBy", { name: target.sender.name }) : plainText(target, t);
    return h(
      "button",
      { class: "quote", type: "button", onclick: () => this.context.onJump(id) },
      h("b", {}, t("replyTo", { name: target.sender.name })),
      h("span", {}, text),
    );
  }

  /**
   * @param {boolean} own
   * @returns {HTMLElement}
   */
  tools(own) {
    const { t } = this.context.i18n;
    const { onReply, onRecall } = this.context;
    const copy = tool("copy", t("copy"), async () => (await copyText(plainText(this.message, t))) && flash(copy));
    return h(
      "div",
      { class: "tools", role: "group" },
      tool("reply", t("reply"), () => onReply(this.message)),
      copy,
      own ? tool("recall", t("recall"), () => onRecall(this.message)) : null,
    );
  }

  dispose() {
    this.card?.dispose();
  }
}

/**
 * @param {string} name
 * @param {string} label
 * @param {() => void} act
 * @returns {HTMLButtonElement}
 */
function tool(name, label, act) {
  return h("button", { type: "button", class: "tool", "aria-label": label, title: label, testid: `tool-${name}`, onclick: act }, icon(name, 16));
}

/** @param {HTMLElement} button */
function flash(button) {
  button.replaceChildren(icon("check", 16));
  window.setTimeout(() => button.replaceChildren(icon("copy", 16)), 1200);
}

/**
 * A person's text: plain, with names after @ and addresses made visible.
 * @param {Message} message
 * @returns {Array<Node|string>}
 */
function userText(message) {
  let text = message.text;
  /** @type {string[]} */
  const names = [];
  for (const mention of message.mentions ?? []) {
    if (mention.key && mention.name) text = text.split(mention.key).join(`@${mention.name}`);
    if (mention.name) names.push(`@${mention.name}`);
  }
  const marks = [...names.map(escapePattern), "https?://[^\\s<>\"'）)]+"];
  return text.split(new RegExp(`(${marks.join("|")})`, "u")).map((piece) => markUp(piece, names));
}

/**
 * @param {string} piece
 * @param {string[]} names
 * @returns {Node|string}
 */
function markUp(piece, names) {
  if (names.includes(piece)) return h("span", { class: "at" }, piece);
  if (!/^https?:\/\//.test(piece)) return piece;
  const link = safeLink(piece);
  link.append(piece);
  return link;
}

/** @param {string} text */
function escapePattern(text) {
  return text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
}
