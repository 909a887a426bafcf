// @ts-check
/** The message box. Owns the draft of each chat, whether the bot is mentioned, and what is being replied to. */

import { api } from "./api.js";
import { avatar } from "./avatar.js";
import { COMMANDS } from "./commands.js";
import { byId, fill, h } from "./dom.js";
import { icon } from "./icons.js";
import { sampleQuestions } from "./log_view.js";
import { Picker } from "./picker.js";
import { plainText } from "./plain.js";
import { explain } from "./explain.js";
import { toast } from "./toast.js";

/** @typedef {import("./types.js").Message} Message */

const MAX_HEIGHT_PX = 168;
// As bot/sandbox/page/server.py has them.
const MIN_FILE_BYTES = 6;
const MAX_FILE_BYTES = 4 * 2 ** 20;

/**
 * @param {File} file
 * @returns {Promise<string>}
 */
function base64Of(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).replace(/^[^,]*,/, ""));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

export class Composer {
  /**
   * @param {import("./store.js").Store} store
   * @param {import("./i18n.js").I18n} i18n
   */
  constructor(store, i18n) {
    this.store = store;
    this.i18n = i18n;
    this.field = /** @type {HTMLTextAreaElement} */ (byId("composer-input"));
    this.sendButton = /** @type {HTMLButtonElement} */ (byId("send"));
    this.chip = byId("mention-chip");
    this.fileInput = /** @type {HTMLInputElement} */ (byId("file-input"));
    this.picker = new Picker(byId("picker"), this.field);
    this.mentions = true;
    /** @type {Message|null} */
    this.target = null;
    /** @type {Map<string, string>} */
    this.drafts = new Map();
    /** @type {Map<string, string>} last sent text per speaker */
    this.sent = new Map();
    this.chatId = "";
    this.busy = false;
    this.listen();
  }

  listen() {
    this.field.addEventListener("input", () => this.changed());
    this.field.addEventListener("keydown", (event) => this.key(event));
    this.field.addEventListener("blur", () => this.picker.hide());
    this.field.addEventListener("paste", (event) => {
      if (event.clipboardData?.files.length && !event.clipboardData.getData("text")) this.sendFiles(event.clipboardData.files);
    });
    this.fileInput.addEventListener("change", () => this.sendFiles(this.fileInput.files ?? []));
    byId("open-file").addEventListener("click", () => this.fileInput.click());
    const box = byId("composer");
    box.addEventListener("dragover", (event) => event.preventDefault());
    box.addEventListener("drop", (event) => {
      event.preventDefault();
      this.sendFiles(event.dataTransfer?.files ?? []);
    });
    this.sendButton.addEventListener("click", () => this.send());
    this.chip.addEventListener("click", () => this.setMention(!this.mentions));
    byId("open-mentions").addEventListener("click", () => this.offer(this.people("")));
    byId("open-commands").addEventListener("click", () => this.offer(this.commands("/")));
    byId("open-samples").addEventListener("click", () => this.offer(this.samples()));
    this.store.on("state", () => this.refresh());
    this.store.on("chat", () => this.refresh());
    this.store.on("speaker", () => this.refresh());
    this.i18n.onChange(() => this.refresh());
  }

  /** Redraws what depends on the chat, the speaker and the language. */
  refresh() {
    if (this.chatId !== this.store.chatId) this.swapDraft();
    const kind = this.store.chat(this.store.chatId)?.kind;
    byId("open-mentions").hidden = this.chip.hidden = kind === "p2p";
    this.drawSpeakers();
    this.drawChip();
    this.drawTarget();
    this.changed();
  }

  swapDraft() {
    if (this.chatId) this.drafts.set(this.chatId, this.field.value);
    this.chatId = this.store.chatId;
    this.field.value = this.drafts.get(this.chatId) ?? "";
    this.target = null;
  }

  drawSpeakers() {
    const { t } = this.i18n;
    fill(
      byId("speakers"),
      this.store.server.users.map((user) => {
        const on = user.id === this.store.speakerId;
        return h(
          "button",
          {
            type: "button", role: "radio", class: "speaker", testid: `speaker-${user.id}`, "aria-checked": String(on), tabindex: on ? "0" : "-1",
            title: t("speakAsName", { name: user.name }), onclick: () => this.store.speak(user.id),
          },
          avatar(user, "s"),
          h("span", {}, user.name),
        );
      }),
    );
  }

  drawChip() {
    const bot = this.store.server.bot.name;
    const { t } = this.i18n;
    this.chip.setAttribute("aria-pressed", String(this.mentions));
    this.chip.title = t(this.mentions ? "mentionOn" : "mentionOff", { bot });
    fill(this.chip, icon(this.mentions ? "check" : "plus", 13), `@${bot}`);
    this.field.placeholder = t(this.placeholderKey(), { bot });
    byId("composer-note").textContent = this.mentioned() ? t("enterHint") : t("mentionOff", { bot });
    byId("composer").classList.toggle("is-silent", !this.mentioned());
  }

  placeholderKey() {
    if (this.target) return "placeholderReply";
    if (!this.mentioned()) return "placeholderSilent";
    return this.store.chat(this.store.chatId)?.kind === "topic" ? "placeholderTopic" : "placeholderMention";
  }

  /** @returns {boolean} whether the bot will feel addressed */
  mentioned() {
    return this.mentions || this.store.chat(this.store.chatId)?.kind === "p2p";
  }

  drawTarget() {
    const box = byId("reply-target");
    box.hidden = !this.target;
    if (!this.target) return;
    const { t } = this.i18n;
    const drop = h("button", { type: "button", class: "tool", "aria-label": t("cancel"), onclick: () => this.replyTo(null) }, icon("close", 15));
    fill(box, icon("reply", 15), h("b", {}, t("replyingTo", { name: this.target.sender.name })), h("span", {}, plainText(this.target, t)), drop);
  }

  /** @param {boolean} on */
  setMention(on) {
    this.mentions = on;
    this.drawChip();
    this.field.focus();
  }

  /** @param {Message|null} message */
  replyTo(message) {
    this.target = message;
    this.drawTarget();
    this.drawChip();
    this.field.focus();
  }

  /** The text changed: size, send button, list of people or commands. */
  changed() {
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, MAX_HEIGHT_PX)}px`;
    this.sendButton.disabled = this.busy || !this.field.value.trim();
    if (document.activeElement === this.field) this.suggest();
  }

  suggest() {
    const before = this.field.value.slice(0, this.field.selectionStart ?? 0);
    const at = /(?:^|\s)@([^\s@]{0,20})$/u.exec(before);
    const slash = /^[/／]([a-z]*)$/i.exec(this.field.value);
    const grouped = this.store.chat(this.store.chatId)?.kind !== "p2p";
    if (at && grouped) this.picker.show(this.people(at[1]), this.i18n.t("mention"));
    else if (slash && !COMMANDS.some((command) => command.name === this.field.value)) {
      this.picker.show(this.commands(this.field.value), this.i18n.t("commands"));
    } else this.picker.hide();
  }

  /** @param {import("./picker.js").Item[]} items  opened by a button */
  offer(items) {
    this.field.focus();
    this.picker.show(items, this.i18n.t("commands"));
  }

  /**
   * @param {string} typed  what stands after the @
   * @returns {import("./picker.js").Item[]}
   */
  people(typed) {
    const { bot, users } = this.store.server;
    const fits = (/** @type {string} */ name) => name.toLowerCase().split(" ").some((word) => word.startsWith(typed.toLowerCase()));
    return [
      { label: bot.name, hint: this.i18n.t("botTag"), lead: avatar({ id: bot.open_id, name: bot.name, bot: true }, "s"), testid: "pick-bot", choose: () => this.mentionBot() },
      ...users.filter((user) => user.id !== this.store.speakerId).map((user) => ({
        label: user.name, lead: avatar(user, "s"), choose: () => this.insertName(user.name),
      })),
    ].filter((item) => fits(item.label));
  }

  /**
   * @param {string} typed
   * @returns {import("./picker.js").Item[]}
   */
  commands(typed) {
    const start = typed.replace("／", "/").toLowerCase();
    return COMMANDS.filter((command) => command.name.startsWith(start)).map((command) => ({
      label: command.name, hint: this.i18n.t(command.key), testid: `pick-${command.name.slice(1)}`, choose: () => this.setText(command.name),
    }));
  }

  /** @returns {import("./picker.js").Item[]} */
  samples() {
    return sampleQuestions(this.store, this.i18n.lang).map((text) => ({ label: text, lead: icon("spark", 16), choose: () => this.setText(text) }));
  }

  mentionBot() {
    this.replaceAt("");
    this.setMention(true);
  }

  /** @param {string} name */
  insertName(name) {
    this.replaceAt(`@${name} `);
  }

  /** @param {string} text  takes the place of the "@…" before the caret */
  replaceAt(text) {
    const caret = this.field.selectionStart ?? this.field.value.length;
    const before = this.field.value.slice(0, caret).replace(/@[^\s@]{0,20}$/u, "");
    this.field.value = before + text + this.field.value.slice(caret);
    this.field.setSelectionRange(before.length + text.length, before.length + text.length);
    this.changed();
  }

  /** @param {string} text */
  setText(text) {
    this.field.value = text;
    this.field.focus();
    this.field.setSelectionRange(text.length, text.length);
    this.changed();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    // While an input method composes, Enter and arrows belong to it (keyCode 229: Safari says so after the fact).
    if (event.isComposing || event.keyCode === 229) return;
    if (this.picker.key(event)) return;
    if (event.key === "Enter" && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      this.send();
    } else if (event.key === "Escape" && this.target) {
      this.replyTo(null);
      event.stopPropagation();
    } else if (event.key === "ArrowUp" && !this.field.value && this.sent.has(this.store.speakerId)) {
      event.preventDefault();
      this.setText(this.sent.get(this.store.speakerId) ?? "");
    }
  }

  /** @param {string} text  sends a ready-made question */
  ask(text) {
    this.mentions = true;
    this.drawChip();
    this.setText(text);
    return this.send();
  }

  async send() {
    const text = this.field.value.trim();
    if (!text || this.busy) return;
    const { chatId, speakerId } = this.store;
    this.busy = true;
    this.sendButton.disabled = true;
    try {
      await api.say({
        chat_id: chatId, user_id: speakerId, text, mention_bot: this.mentioned(), ...(this.target ? { reply_to: this.target.id } : {}),
      });
      this.sent.set(speakerId, text);
      this.clear(chatId);
    } catch (error) {
      toast(this.i18n.t("errSend", { why: explain(error, this.i18n) }), "error");
    } finally {
      this.busy = false;
      this.changed();
    }
  }

  /** @param {Iterable<File>} files  each a message of its own, in this order */
  async sendFiles(files) {
    const { chatId, speakerId } = this.store;
    for (const file of [...files]) {
      if (file.size < MIN_FILE_BYTES || file.size > MAX_FILE_BYTES) {
        toast(this.i18n.t("errFile", { name: file.name }), "warning");
        continue;
      }
      try {
        const data = await base64Of(file);
        await api.sendFile({ chat_id: chatId, user_id: speakerId, name: file.name, data, is_image: file.type.startsWith("image/") });
      } catch (error) {
        toast(this.i18n.t("errSend", { why: explain(error, this.i18n) }), "error");
      }
    }
    this.fileInput.value = "";
  }

  /** @param {string} chatId  where the text was sent (another chat may be open by now) */
  clear(chatId) {
    if (chatId !== this.store.chatId) {
      this.drafts.delete(chatId);
      return;
    }
    this.field.value = "";
    if (this.target) this.replyTo(null);
  }
}
