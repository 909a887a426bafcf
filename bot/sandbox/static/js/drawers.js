// @ts-check
/**
 * The two side panes. On a wide screen they stand beside the chat (the wire panel can be folded away); on a narrow one they
 * slide over it, one at a time, and everything hidden is out of reach of Tab. Owns which pane is open.
 */

import { byId } from "./dom.js";
import { keep, remember } from "./storage.js";

/** @typedef {"side"|"wire"} Pane */

export class Drawers {
  constructor() {
    this.root = byId("app");
    /** @type {Record<Pane, HTMLElement>} */
    this.panes = { side: byId("side"), wire: byId("wire") };
    this.narrow = { side: window.matchMedia("(max-width: 767px)"), wire: window.matchMedia("(max-width: 1179px)") };
    /** @type {Record<Pane, boolean>} whether it slides over the chat right now */
    this.over = { side: false, wire: false };
    this.folded = remember("wire") === "folded";
    for (const pane of /** @type {Pane[]} */ (["side", "wire"])) {
      this.narrow[pane].addEventListener("change", () => this.closeAll());
      for (const button of document.querySelectorAll(`[data-toggle="${pane}"]`)) button.addEventListener("click", () => this.toggle(pane));
    }
    byId("backdrop").addEventListener("click", () => this.closeAll());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented) this.closeAll();
    });
    this.apply();
  }

  /** @param {Pane} pane */
  toggle(pane) {
    if (this.narrow[pane].matches) {
      const open = !this.over[pane];
      this.over = { side: false, wire: false, [pane]: open };
      this.apply();
      if (open) /** @type {HTMLElement|null} */ (this.panes[pane].querySelector("[data-first]"))?.focus();
    } else if (pane === "wire") {
      this.folded = !this.folded;
      keep("wire", this.folded ? "folded" : "open");
      this.apply();
    }
  }

  closeAll() {
    const open = /** @type {Pane|undefined} */ (Object.entries(this.over).find(([, is]) => is)?.[0]);
    this.over = { side: false, wire: false };
    this.apply();
    if (open) /** @type {HTMLElement|null} */ (document.querySelector(`.room [data-toggle="${open}"]`))?.focus();
  }

  apply() {
    const shown = {
      side: !this.narrow.side.matches || this.over.side,
      wire: this.narrow.wire.matches ? this.over.wire : !this.folded,
    };
    for (const pane of /** @type {Pane[]} */ (["side", "wire"])) {
      this.panes[pane].inert = !shown[pane];
      this.panes[pane].classList.toggle("is-open", shown[pane]);
      for (const button of document.querySelectorAll(`[data-toggle="${pane}"]`)) button.setAttribute("aria-expanded", String(shown[pane]));
    }
    this.root.classList.toggle("is-wire-folded", !this.narrow.wire.matches && this.folded);
    byId("backdrop").hidden = !this.over.side && !this.over.wire;
  }
}
