// @ts-check
/** Ctrl/Cmd+K: every chat, person, question and action behind one field. Owns the dialog and its list. */

import { byId } from "./dom.js";
import { icon } from "./icons.js";
import { Picker } from "./picker.js";

/** @typedef {import("./picker.js").Item & {group: string}} Entry */

export class Palette {
  /**
   * @param {() => Entry[]} entries
   * @param {import("./i18n.js").I18n} i18n
   */
  constructor(entries, i18n) {
    this.entries = entries;
    this.i18n = i18n;
    this.dialog = /** @type {HTMLDialogElement} */ (byId("palette"));
    this.field = /** @type {HTMLInputElement} */ (byId("palette-input"));
    this.list = new Picker(byId("palette-list"), this.field);
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.field.addEventListener("input", () => this.filter());
    this.field.addEventListener("keydown", (event) => {
      if (event.isComposing || event.key === "Escape") return;
      this.list.key(event);
    });
  }

  toggle() {
    if (this.dialog.open) return this.dialog.close();
    this.field.value = "";
    this.dialog.showModal();
    this.filter();
  }

  filter() {
    const words = this.field.value.trim().toLowerCase();
    const fitting = this.entries().filter((entry) => `${entry.group} ${entry.label}`.toLowerCase().includes(words));
    this.list.show(fitting.map((entry) => ({ ...entry, hint: entry.group, choose: () => this.run(entry) })), this.i18n.t("palette"));
    byId("palette-none").hidden = fitting.length > 0;
  }

  /** @param {Entry} entry */
  run(entry) {
    this.dialog.close();
    entry.choose();
  }
}

/**
 * @param {string} group
 * @param {string} label
 * @param {string} iconName
 * @param {() => void} choose
 * @returns {Entry}
 */
export const entry = (group, label, iconName, choose) => ({ group, label, lead: icon(iconName, 17), choose });
