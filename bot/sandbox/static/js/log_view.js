// @ts-check
/** The messages of the open chat. Owns one MessageView per message; a topic chat shows one frame per topic. */

import { flame, icon } from "./icons.js";
import { byId, fill, h } from "./dom.js";
import { MessageView } from "./message_view.js";
import { plainText } from "./plain.js";
import { StickyEnd } from "./scroll.js";

/**
 * @typedef {import("./types.js").Message} Message
 * @typedef {import("./message_view.js").MessageContext} MessageContext
 */

const SAME_BREATH_MS = 3 * 60_000;

export class LogView {
  /**
   * @param {MessageContext} context
   * @param {{ask: (text: string) => void}} hooks
   */
  constructor(context, hooks) {
    this.context = context;
    this.hooks = hooks;
    /** @type {Map<string, MessageView>} */
    this.views = new Map();
    /** @type {Map<string, HTMLElement>} */
    this.threads = new Map();
    this.list = byId("messages");
    this.announcer = byId("announcer");
    const latest = byId("latest");
    this.end = new StickyEnd(byId("log"), this.list, (pinned) => (latest.hidden = pinned));
    latest.addEventListener("click", () => this.end.toEnd());
    window.addEventListener("resize", measureGutter);
    measureGutter();
    const { store, i18n } = context;
    store.on("state", () => this.rebuild());
    store.on("chat", () => this.rebuild());
    store.on("speaker", () => this.turnSides());
    store.on("message", (change) => this.take(change));
    store.on("removed", (id) => this.remove(id));
    i18n.onChange(() => this.rebuild());
  }

  rebuild() {
    for (const view of this.views.values()) view.dispose();
    this.views.clear();
    this.threads.clear();
    this.list.replaceChildren();
    for (const message of this.context.store.messagesOf(this.context.store.chatId)) this.add(message);
    this.regroup();
    this.end.toEnd();
  }

  /** Another person speaks: their messages move to the right; growing cards go on undisturbed. */
  turnSides() {
    for (const view of this.views.values()) view.reframe();
  }

  /** @param {{message: Message, isNew: boolean}} change */
  take({ message, isNew }) {
    if (message.chat_id !== this.context.store.chatId) return;
    const view = this.views.get(message.id);
    const wasStreaming = view?.card?.wasStreaming ?? false;
    if (view) view.update(message);
    else this.add(message, isNew);
    if (isNew && message.sender.id === this.context.store.speakerId) this.end.toEnd();
    this.regroup();
    this.announce(message, isNew, wasStreaming);
  }

  /**
   * @param {Message} message
   * @param {boolean} [fresh]  it came just now, so a card types out its first text too
   */
  add(message, fresh = false) {
    const view = new MessageView(message, this.context, fresh);
    this.views.set(message.id, view);
    this.parentFor(message).append(view.node);
    this.list.querySelector(".empty")?.remove();
  }

  /** @param {string} id */
  remove(id) {
    const view = this.views.get(id);
    if (!view) return;
    view.dispose();
    view.node.remove();
    this.views.delete(id);
    this.regroup();
  }

  /**
   * @param {Message} message
   * @returns {HTMLElement}
   */
  parentFor(message) {
    const { store, i18n, onReply } = this.context;
    if (store.chat(message.chat_id)?.kind !== "topic") return this.list;
    const id = message.thread_id || this.rootOf(message);
    let thread = this.threads.get(id);
    if (!thread) {
      const reply = h("button", { type: "button", class: "thread-reply", onclick: () => onReply(message) }, icon("reply", 15), i18n.t("replyInTopic"));
      thread = h("div", { class: "thread-messages" });
      this.threads.set(id, thread);
      this.list.append(h("section", { class: "thread" }, thread, reply));
    }
    return thread;
  }

  /**
   * @param {Message} message
   * @returns {string} the first message of its topic, where the server names no topic
   */
  rootOf(message) {
    const above = message.reply_to ? this.context.store.messages.get(message.reply_to) : undefined;
    return above && above.id !== message.id ? above.thread_id || this.rootOf(above) : message.id;
  }

  /** Hides picture and name where one person goes on talking; shows the welcome where nobody has talked. */
  regroup() {
    /** @type {MessageView|null} */
    let before = null;
    for (const view of this.views.values()) {
      const after = before && !before.message.recalled && view.node.previousElementSibling === before.node ? before.message : null;
      view.node.classList.toggle("is-continued", after !== null && sameBreath(after, view.message));
      before = view;
    }
    if (this.views.size === 0 && this.context.store.loaded) this.welcome();
  }

  welcome() {
    const { store, i18n } = this.context;
    const { t } = i18n;
    const direct = store.chat(store.chatId)?.kind === "p2p";
    const questions = sampleQuestions(store, i18n.lang).slice(0, 4);
    fill(
      this.list,
      h(
        "div",
        { class: "empty" },
        h("div", { class: "empty-mark" }, flame(44)),
        h("h2", {}, t(direct ? "emptyTitleDirect" : "emptyTitle", { bot: store.server.bot.name })),
        h("p", {}, t("emptyBody")),
        h("div", { class: "empty-questions" }, questions.map((text, n) =>
          h("button", { type: "button", testid: `sample-${n}`, onclick: () => this.hooks.ask(text) }, h("span", {}, text), icon("send", 15)))),
        h("ol", { class: "empty-steps" }, ["emptyOne", "emptyTwo", "emptyThree"].map((key) => h("li", {}, t(key)))),
      ),
    );
  }

  /**
   * Tells a screen reader about whole messages, not about each letter of a growing card.
   * @param {Message} message
   * @param {boolean} isNew
   * @param {boolean} wasStreaming
   */
  announce(message, isNew, wasStreaming) {
    const { t } = this.context.i18n;
    const streaming = message.card?.streaming ?? false;
    if (isNew && streaming) this.announcer.textContent = t("answering", { name: message.sender.name });
    else if ((isNew || wasStreaming) && !streaming && !message.recalled) {
      this.announcer.textContent = t("saidLive", { name: message.sender.name, text: plainText(message, t) });
    }
  }

  /** @param {string} id */
  jumpTo(id) {
    const node = this.views.get(id)?.node;
    if (!node) return;
    node.scrollIntoView({ block: "center" });
    node.classList.remove("is-found");
    void node.offsetWidth;
    node.classList.add("is-found");
  }
}

/** Tells the composer how wide the scrollbar is, so that both stay in line. */
function measureGutter() {
  const log = byId("log");
  document.documentElement.style.setProperty("--gutter", `${log.offsetWidth - log.clientWidth}px`);
}

/**
 * @param {Message} before
 * @param {Message} message
 * @returns {boolean} the same person just goes on talking
 */
function sameBreath(before, message) {
  return before.sender.id === message.sender.id && message.at_ms - before.at_ms < SAME_BREATH_MS && !message.reply_to;
}

/**
 * @param {import("./store.js").Store} store
 * @param {"en"|"zh"} lang
 * @returns {string[]}
 */
export function sampleQuestions(store, lang) {
  const given = store.server.notes.sample_questions ?? [];
  const list = typeof given === "string" ? given.split("\n").map((line) => line.trim()) : given;
  return list.map((one) => (typeof one === "string" ? one : one[lang] ?? one.en ?? one.zh ?? "")).filter(Boolean);
}
