// @ts-check
/** The chat list and the form for a new group. */

import { api } from "./api.js";
import { chatAvatar } from "./avatar.js";
import { byId, fill, h } from "./dom.js";
import { snippet } from "./plain.js";
import { explain } from "./explain.js";
import { toast } from "./toast.js";

/** @typedef {import("./types.js").Chat} Chat */

export class Sidebar {
  /**
   * @param {import("./store.js").Store} store
   * @param {import("./i18n.js").I18n} i18n
   * @param {() => void} onChosen  a chat was chosen (a phone closes its drawer)
   */
  constructor(store, i18n, onChosen) {
    this.store = store;
    this.i18n = i18n;
    this.onChosen = onChosen;
    this.list = byId("chats");
    this.form = /** @type {HTMLFormElement} */ (byId("new-chat-form"));
    this.name = /** @type {HTMLInputElement} */ (byId("new-chat-name"));
    for (const topic of /** @type {const} */ (["state", "chat", "speaker", "message", "removed", "unread"])) store.on(topic, () => this.draw());
    i18n.onChange(() => this.draw());
    byId("new-chat").addEventListener("click", () => this.openForm());
    byId("new-chat-cancel").addEventListener("click", () => this.closeForm());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.create();
    });
    this.form.addEventListener("keydown", (event) => event.key === "Escape" && this.closeForm());
    this.list.addEventListener("keydown", (event) => this.arrows(event));
  }

  draw() {
    const focused = /** @type {HTMLElement|null} */ (document.activeElement)?.dataset.chat;
    fill(this.list, this.store.server.chats.map((chat) => h("li", {}, this.row(chat))));
    if (focused) /** @type {HTMLElement|null} */ (this.list.querySelector(`[data-chat="${CSS.escape(focused)}"]`))?.focus();
  }

  /** @param {Chat} chat */
  row(chat) {
    const { t } = this.i18n;
    const last = this.store.messagesOf(chat.id).at(-1);
    const line = last ? `${chat.kind === "p2p" ? "" : `${last.sender.name}: `}${snippet(last, t)}` : t(chat.kind === "p2p" ? "direct" : chat.kind);
    const unread = this.store.unread.has(chat.id);
    return h(
      "button",
      {
        type: "button", class: "chat", testid: `chat-${chat.id}`, "data-chat": chat.id, onclick: () => this.choose(chat.id),
        "aria-current": chat.id === this.store.chatId ? "true" : null,
      },
      chatAvatar(chat),
      h(
        "span",
        { class: "chat-text" },
        h("b", {}, chatTitle(chat, this.store)),
        h("span", { class: last?.card?.streaming ? "chat-line is-live" : "chat-line" }, line),
      ),
      h("span", { class: "chat-side" }, last ? h("time", {}, this.i18n.time(last.at_ms)) : null, unread ? h("i", { class: "unread" }) : null),
    );
  }

  /** @param {string} id */
  choose(id) {
    this.store.openChat(id);
    this.onChosen();
  }

  /** @param {KeyboardEvent} event */
  arrows(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const rows = /** @type {HTMLElement[]} */ ([...this.list.querySelectorAll("button")]);
    const at = rows.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    rows[(at + step + rows.length) % rows.length]?.focus();
    event.preventDefault();
  }

  openForm() {
    this.form.hidden = false;
    byId("new-chat").hidden = true;
    const groups = this.store.server.chats.filter((chat) => chat.kind !== "p2p").length;
    this.name.value = this.i18n.t("newChatDefault", { n: groups + 1 });
    this.name.select();
    this.name.focus();
  }

  closeForm() {
    this.form.hidden = true;
    byId("new-chat").hidden = false;
    byId("new-chat").focus();
  }

  async create() {
    const name = this.name.value.trim();
    if (!name) return;
    try {
      const made = await api.newChat(name);
      const chat = made.chat ?? made;
      this.closeForm();
      this.store.putChat({ kind: "group", name, ...chat, id: chat.id ?? chat.chat_id });
      this.choose(chat.id ?? chat.chat_id);
    } catch (error) {
      toast(explain(error, this.i18n), "error");
    }
  }
}

/**
 * @param {Chat} chat
 * @param {import("./store.js").Store} store
 * @returns {string} a direct chat is named after the one whom the speaker would see: the bot
 */
export function chatTitle(chat, store) {
  if (chat.kind !== "p2p") return chat.name;
  const owner = store.ownerOf(chat);
  const several = store.server.chats.filter((other) => other.kind === "p2p").length > 1;
  return owner && several ? `${store.server.bot.name} · ${owner.name}` : store.server.bot.name;
}

