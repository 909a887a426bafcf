// @ts-check
/** Which language the page speaks. Owns the choice, remembers it, and fills the static texts of index.html. */

import { keep, remember } from "./storage.js";
import { PLATFORMS } from "./platforms.js";
import { en, zh } from "./strings.js";

/** @typedef {"en"|"zh"} Lang */

const TABLES = { en, zh };

/** @returns {Lang} */
function firstLang() {
  const kept = remember("lang");
  if (kept === "en" || kept === "zh") return kept;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export class I18n {
  constructor() {
    /** @type {Lang} */
    this.lang = firstLang();
    /** @type {keyof typeof PLATFORMS} which platform is played */
    this.platform = "feishu";
    /** @type {Array<() => void>} */
    this.listeners = [];
  }

  /** @param {string|undefined} platform  as the server names it; one that this page does not know leaves the texts as they are */
  setPlatform(platform) {
    if (!platform || platform === this.platform || !(platform in PLATFORMS)) return;
    this.platform = /** @type {keyof typeof PLATFORMS} */ (platform);
    this.changed();
  }

  /**
   * @param {string} key
   * @param {Record<string, string|number>} [values]  fill "{name}" places; n = 1 takes the text "<key>_one" if there is one
   * @returns {string}
   */
  t = (key, values = {}) => {
    const own = PLATFORMS[this.platform][this.lang];
    const table = TABLES[this.lang];
    const text = (values.n === 1 ? table[`${key}_one`] : undefined) ?? own.texts[key] ?? table[key] ?? key;
    const known = { ...values, platform: own.name, pushed: own.pushed };
    return text.replace(/\{(\w+)\}/g, (whole, name) => (name in known ? String(known[/** @type {keyof typeof known} */ (name)]) : whole));
  };

  /** @param {() => void} listener */
  onChange(listener) {
    this.listeners.push(listener);
  }

  toggle() {
    this.lang = this.lang === "zh" ? "en" : "zh";
    keep("lang", this.lang);
    this.changed();
  }

  changed() {
    this.apply();
    for (const listener of this.listeners) listener();
  }

  /** Fills every [data-i18n] (text) and [data-i18n-attr="name:key;…"] of the document. */
  apply() {
    document.documentElement.lang = this.lang === "zh" ? "zh-CN" : "en";
    document.title = this.t("title");
    for (const node of document.querySelectorAll("[data-i18n]")) {
      node.textContent = this.t(node.getAttribute("data-i18n") ?? "");
    }
    for (const node of document.querySelectorAll("[data-i18n-attr]")) {
      for (const pair of (node.getAttribute("data-i18n-attr") ?? "").split(";")) {
        const [name, key] = pair.split(":");
        node.setAttribute(name, this.t(key));
      }
    }
  }

  /**
   * @param {number} atMs
   * @returns {string} hours and minutes
   */
  time(atMs) {
    return new Date(atMs).toLocaleTimeString(this.lang === "zh" ? "zh-CN" : "en-GB", { hour: "2-digit", minute: "2-digit" });
  }
}
