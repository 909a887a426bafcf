// @ts-check
/** The two pages over the page: "use a real model" and "keyboard and help". Native <dialog>s: Esc and focus come free. */

import { byId, fill, h } from "./dom.js";
import { codeBlock } from "./code_block.js";

const GGUF_LINES = `[models.main]
backend = "llama.cpp"
path    = "/models/your-model-Q4_K_M.gguf"`;

const SERVER_LINES = `[models.main]
backend  = "openai"
base_url = "http://127.0.0.1:8000/v1"
model    = "your-model"
n_ctx    = 8192`;

const RUN_LINE = "hearth serve --config config.toml";

const isMac = /mac|iphone|ipad/i.test(navigator.userAgent);

/** @type {Array<[string[], string]>} */
const KEYS = [
  [["Enter"], "keySend"],
  [["Shift", "Enter"], "keyNewline"],
  [["@"], "keyMention"],
  [["/"], "keyCommand"],
  [[isMac ? "⌘" : "Ctrl", "K"], "keyPalette"],
  [[isMac ? "⌘" : "Ctrl", "."], "keyWire"],
  [["↑"], "keyUp"],
  [["Esc"], "keyEsc"],
];

export class Dialogs {
  /**
   * @param {import("./store.js").Store} store
   * @param {import("./i18n.js").I18n} i18n
   */
  constructor(store, i18n) {
    this.store = store;
    this.i18n = i18n;
    for (const dialog of /** @type {NodeListOf<HTMLDialogElement>} */ (document.querySelectorAll("dialog.sheet"))) {
      dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
      dialog.querySelector("[data-close]")?.addEventListener("click", () => dialog.close());
    }
  }

  showModel() {
    const { t } = this.i18n;
    const { notes } = this.store.server;
    fill(
      byId("model-body"),
      notes.real_model_hint ? [h("p", {}, t("realHere")), codeBlock(notes.real_model_hint, "sh", t)] : null,
      h("p", {}, t("realBody")),
      codeBlock(GGUF_LINES, "config.toml", t),
      h("p", {}, t("realServer")),
      codeBlock(SERVER_LINES, "config.toml", t),
      h("p", {}, t("realRun")),
      codeBlock(RUN_LINE, "sh", t),
      notes.model ? h("p", { class: "quiet" }, t("modelNow", { model: notes.model })) : null,
    );
    open("model-dialog");
  }

  showHelp() {
    const { t } = this.i18n;
    fill(
      byId("help-body"),
      h("dl", { class: "keys" }, KEYS.flatMap(([keys, text]) => [h("dt", {}, keys.map((key) => h("kbd", {}, key))), h("dd", {}, t(text))])),
      h("h3", {}, t("aboutTitle")),
      h("p", {}, t("aboutBody")),
    );
    open("help-dialog");
  }
}

/** @param {string} id */
function open(id) {
  const dialog = /** @type {HTMLDialogElement} */ (byId(id));
  if (!dialog.open) dialog.showModal();
}
