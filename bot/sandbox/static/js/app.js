// @ts-check
/** Puts the page together: the store, the live line to the sandbox, and the views. Nothing else knows all of them. */

import { api } from "./api.js";
import { Composer } from "./composer.js";
import { Dialogs } from "./dialogs.js";
import { byId } from "./dom.js";
import { Drawers } from "./drawers.js";
import { LiveLine } from "./events.js";
import { explain } from "./explain.js";
import { Faults } from "./faults.js";
import { Header } from "./header.js";
import { I18n } from "./i18n.js";
import { flame, icon } from "./icons.js";
import { LogView, sampleQuestions } from "./log_view.js";
import { entry, Palette } from "./palette.js";
import { chatTitle, Sidebar } from "./sidebar.js";
import { keep, remember } from "./storage.js";
import { Store } from "./store.js";
import { toast } from "./toast.js";
import { WirePanel } from "./wire.js";

class App {
  constructor() {
    this.i18n = new I18n();
    this.store = new Store();
    /** @type {Map<string, string>} */
    this.names = new Map();
    /** @type {Array<[string, any]>|null} events that came before the first state; null once it is there */
    this.early = [];
    drawIcons();
    this.i18n.apply();
    this.drawers = new Drawers();
    this.composer = new Composer(this.store, this.i18n);
    this.log = new LogView(this.context(), { ask: (text) => void this.composer.ask(text) });
    this.wire = new WirePanel(this.store, this.i18n);
    this.header = new Header(this.store, this.i18n);
    this.sidebar = new Sidebar(this.store, this.i18n, () => this.afterChoice());
    this.faults = new Faults(this.i18n);
    this.dialogs = new Dialogs(this.store, this.i18n);
    this.palette = new Palette(() => this.entries(), this.i18n);
    this.listen();
    this.line = new LiveLine("/sandbox/events", { onEvent: (name, data) => this.take(name, data), onState: (line) => this.lineChanged(line) });
    this.line.open();
  }

  /** @returns {import("./message_view.js").MessageContext} */
  context() {
    return {
      i18n: this.i18n, store: this.store, names: this.names, stats: new Map(),
      onPress: (id, value) => this.press(id, value),
      onReply: (message) => this.composer.replyTo(message),
      onRecall: (message) => void this.recall(message),
      onJump: (id) => this.log.jumpTo(id),
    };
  }

  listen() {
    byId("lang-switch").addEventListener("click", () => this.i18n.toggle());
    byId("help").addEventListener("click", () => this.dialogs.showHelp());
    byId("open-palette").addEventListener("click", () => this.palette.toggle());
    byId("retry").addEventListener("click", () => this.line.retryNow());
    for (const id of ["model-chip", "banner-real"]) byId(id).addEventListener("click", () => this.dialogs.showModel());
    document.addEventListener("keydown", (event) => this.key(event));
    byId("speakers").addEventListener("keydown", (event) => this.speakerKey(event));
    for (const tab of /** @type {const} */ (["traffic", "faults"])) byId(`tab-${tab}`).addEventListener("click", () => showTab(tab));
    byId("wire-tabs").addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      showTab(byId("tab-traffic").getAttribute("aria-selected") === "true" ? "faults" : "traffic", true);
    });
    this.store.on("speaker", () => this.spoke());
    this.store.on("chat", (id) => keep("chat", id));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    if (event.key.toLowerCase() === "k") this.palette.toggle();
    else if (event.key === ".") this.drawers.toggle("wire");
    else return;
    event.preventDefault();
  }

  /** @param {KeyboardEvent} event  arrows move between the radio buttons */
  speakerKey(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const { users } = this.store.server;
    if (!step || !users.length) return;
    const at = users.findIndex((user) => user.id === this.store.speakerId);
    this.store.speak(users[(at + step + users.length) % users.length].id);
    /** @type {HTMLElement|null} */ (byId("speakers").querySelector('[aria-checked="true"]'))?.focus();
    event.preventDefault();
  }

  spoke() {
    keep("speaker", this.store.speakerId);
    const { speaker, server } = this.store;
    if (remember("speaker-note") || !speaker || this.store.chat(this.store.chatId)?.kind !== "group") return;
    keep("speaker-note", "seen");
    toast(this.i18n.t("speakerNote", { name: speaker.name, bot: server.bot.name }), "info");
  }

  afterChoice() {
    this.drawers.closeAll();
    if (window.matchMedia("(pointer: fine)").matches) byId("composer-input").focus();
  }

  /** @param {import("./events.js").LineState} line */
  lineChanged(line) {
    this.store.setLine(line);
    if (line === "live") void this.load();
    else this.early ??= [];
  }

  /** Reads the whole state; what the live line brings meanwhile waits and is applied after it. */
  async load() {
    this.early ??= [];
    try {
      const state = await api.state();
      this.i18n.setPlatform(state.platform);
      this.names.clear();
      for (const user of [...state.users, { id: state.bot.open_id, name: state.bot.name }]) this.names.set(user.id, user.name);
      if (!this.store.loaded) {
        this.store.chatId = remember("chat") ?? "";
        this.store.speakerId = remember("speaker") ?? "";
      }
      this.store.load(state);
    } catch (error) {
      toast(this.i18n.t("errLoad", { why: explain(error, this.i18n) }), "error");
    }
    const waiting = this.early ?? [];
    this.early = null;
    for (const [name, data] of waiting) this.apply(name, data);
    document.body.classList.add("is-ready");
  }

  /**
   * @param {string} name
   * @param {any} data
   */
  take(name, data) {
    if (this.early) this.early.push([name, data]);
    else this.apply(name, data);
  }

  /**
   * @param {string} name
   * @param {any} data
   */
  apply(name, data) {
    if (name === "message") {
      if (!this.store.chat(data.chat_id)) void this.load();
      this.store.putMessage(data);
    } else if (name === "removed") this.store.removeMessage(data.id);
    else if (name === "trace") this.store.addTrace(data);
    else if (name === "chat") this.store.putChat(data);
    else if (name === "reaction") this.store.react(data);
  }

  /**
   * @param {string} messageId
   * @param {any} value
   */
  async press(messageId, value) {
    try {
      const answer = await api.press({ message_id: messageId, value, user_id: this.store.speakerId });
      if (answer.toast?.content) toast(answer.toast.content, answer.toast.type);
    } catch (error) {
      toast(this.i18n.t("errPress", { why: explain(error, this.i18n) }), "error");
    }
  }

  /** @param {import("./types.js").Message} message */
  async recall(message) {
    try {
      await api.recall(message.id);
    } catch (error) {
      toast(this.i18n.t("errRecall", { why: explain(error, this.i18n) }), "error");
    }
  }

  /** @returns {import("./palette.js").Entry[]} */
  entries() {
    const { t } = this.i18n;
    const { chats, users } = this.store.server;
    const action = t("paletteAction");
    return [
      ...chats.map((chat) => entry(t("paletteChat"), chatTitle(chat, this.store), chat.kind === "p2p" ? "person" : "group", () => this.sidebar.choose(chat.id))),
      ...users.map((user) => entry(t("paletteSpeaker"), user.name, "person", () => this.store.speak(user.id))),
      entry(action, t("useReal"), "cpu", () => this.dialogs.showModel()),
      entry(action, t("keyWire"), "wire", () => this.drawers.toggle("wire")),
      entry(action, this.i18n.t("languageLabel"), "globe", () => this.i18n.toggle()),
      entry(action, t("shortcutsTitle"), "help", () => this.dialogs.showHelp()),
      ...sampleQuestions(this.store, this.i18n.lang).map((text) => entry(t("paletteSample"), text, "spark", () => void this.composer.ask(text))),
    ];
  }
}

/** @param {"traffic"|"faults"} name */
function showTab(name, focus = false) {
  for (const tab of ["traffic", "faults"]) {
    const on = tab === name;
    byId(`tab-${tab}`).setAttribute("aria-selected", String(on));
    byId(`tab-${tab}`).tabIndex = on ? 0 : -1;
    byId(`pane-${tab}`).hidden = !on;
  }
  if (focus) byId(`tab-${name}`).focus();
}

/** Fills the places of index.html that ask for an icon. */
function drawIcons() {
  for (const node of document.querySelectorAll("[data-icon]")) {
    const name = node.getAttribute("data-icon") ?? "";
    const size = Number(node.getAttribute("data-icon-size") ?? 18);
    node.prepend(name === "flame" ? flame(size) : icon(name, size));
  }
}

new App();
