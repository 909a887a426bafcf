// @ts-check
/** Above the chat: its name, who is in it, the model, the banner about the tiny model, and the state of the live line. */

import { byId } from "./dom.js";
import { chatTitle } from "./sidebar.js";
import { keep, remember } from "./storage.js";

export class Header {
  /**
   * @param {import("./store.js").Store} store
   * @param {import("./i18n.js").I18n} i18n
   */
  constructor(store, i18n) {
    this.store = store;
    this.i18n = i18n;
    this.hidden = remember("banner") === "hidden";
    for (const topic of /** @type {const} */ (["state", "chat", "speaker", "line", "unread"])) store.on(topic, () => this.draw());
    i18n.onChange(() => this.draw());
    byId("banner-hide").addEventListener("click", () => this.hideBanner());
    this.draw();
  }

  hideBanner() {
    this.hidden = true;
    keep("banner", "hidden");
    this.draw();
  }

  draw() {
    const { t } = this.i18n;
    const { notes } = this.store.server;
    const chat = this.store.chat(this.store.chatId);
    byId("room-title").textContent = chat ? chatTitle(chat, this.store) : "Hearth";
    byId("room-sub").textContent = chat ? this.subtitle(chat) : "";
    const tiny = notes.tiny_model === true || notes.tiny_model === "true";
    byId("banner").hidden = !tiny || this.hidden;
    byId("banner-text").textContent = t("tinyBody", { model: notes.model ?? "SmolLM2-135M" });
    const chip = byId("model-chip");
    chip.hidden = !this.store.loaded || !byId("banner").hidden;
    byId("model-name").textContent = tiny ? t("tinyChip") : notes.model ?? "";
    byId("wire-model").textContent = notes.model ?? "";
    byId("app").classList.toggle("has-unread", this.store.unread.size > 0);
    this.drawLine();
  }

  /** @param {import("./types.js").Chat} chat */
  subtitle(chat) {
    const { t } = this.i18n;
    const { bot, users } = this.store.server;
    if (chat.kind === "p2p") return t("directOf", { name: (this.store.ownerOf(chat) ?? this.store.speaker)?.name ?? t("you"), bot: bot.name });
    const members = t("members", { n: chat.members?.length ?? users.length, bot: bot.name });
    return chat.kind === "topic" ? `${members} · ${t("topicHint")}` : members;
  }

  drawLine() {
    const { line } = this.store;
    byId("line-dot").className = `line-dot is-${line}`;
    byId("line-text").textContent = this.i18n.t(line);
    byId("lost").hidden = line !== "lost";
  }
}
