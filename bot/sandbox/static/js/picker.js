// @ts-check
/** The little list above the message box: who to mention, which command. Owns its items and the highlighted one. */

import { fill, h } from "./dom.js";

/** @typedef {{label: string, hint?: string, lead?: Node, testid?: string, choose: () => void}} Item */

export class Picker {
  /**
   * @param {HTMLElement} box
   * @param {HTMLElement} field  the text field it belongs to (for aria)
   */
  constructor(box, field) {
    this.box = box;
    this.field = field;
    /** @type {Item[]} */
    this.items = [];
    this.at = 0;
  }

  get isOpen() {
    return !this.box.hidden;
  }

  /**
   * @param {Item[]} items
   * @param {string} label
   */
  show(items, label) {
    if (!items.length) return this.hide();
    this.items = items;
    this.at = 0;
    this.box.hidden = false;
    this.box.setAttribute("aria-label", label);
    this.field.setAttribute("aria-expanded", "true");
    this.draw();
  }

  hide() {
    this.box.hidden = true;
    this.items = [];
    this.field.setAttribute("aria-expanded", "false");
    this.field.removeAttribute("aria-activedescendant");
  }

  draw() {
    fill(this.box, this.items.map((item, index) => this.row(item, index)));
    this.field.setAttribute("aria-activedescendant", `${this.box.id}-${this.at}`);
    this.box.children[this.at]?.scrollIntoView({ block: "nearest" });
  }

  /**
   * @param {Item} item
   * @param {number} index
   */
  row(item, index) {
    const on = index === this.at;
    const row = h(
      "div",
      { id: `${this.box.id}-${index}`, class: on ? "pick is-on" : "pick", role: "option", "aria-selected": String(on), testid: item.testid },
      item.lead,
      h("b", {}, item.label),
      item.hint ? h("span", {}, item.hint) : null,
    );
    row.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.choose(index);
    });
    return row;
  }

  /** @param {number} index */
  choose(index) {
    const item = this.items[index];
    this.hide();
    item?.choose();
  }

  /**
   * @param {KeyboardEvent} event
   * @returns {boolean} whether the list took the key
   */
  key(event) {
    if (!this.isOpen) return false;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      this.at = (this.at + step + this.items.length) % this.items.length;
      this.draw();
    } else if ((event.key === "Enter" && !event.shiftKey) || event.key === "Tab") this.choose(this.at);
    else if (event.key === "Escape") this.hide();
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  }
}
