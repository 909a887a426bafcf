// @ts-check
/** The tab "break things": faults on demand, each with the sentence that says what should happen. */

import { api } from "./api.js";
import { byId, fill, h } from "./dom.js";
import { icon } from "./icons.js";
import { explain } from "./explain.js";
import { toast } from "./toast.js";

/** @typedef {"down"|"slow"|"rate_limit"|"duplicate"} Kind */

/** @type {Array<{kind: Kind, icon: string, name: string}>} */
const FAULTS = [
  { kind: "down", icon: "plug", name: "faultDown" },
  { kind: "slow", icon: "snail", name: "faultSlow" },
  { kind: "rate_limit", icon: "gauge", name: "faultRate" },
  { kind: "duplicate", icon: "twice", name: "faultDup" },
];

export class Faults {
  /** @param {import("./i18n.js").I18n} i18n */
  constructor(i18n) {
    this.i18n = i18n;
    /** @type {Kind} what the strip above the chat speaks of, and for how many seconds yet */
    this.running = "down";
    this.left = 0;
    this.timer = 0;
    i18n.onChange(() => this.draw());
    this.draw();
  }

  draw() {
    const { t } = this.i18n;
    fill(
      byId("faults"),
      FAULTS.map((fault) => {
        const button = h("button", { type: "button", class: "plain", testid: `fault-${fault.kind}`, "aria-label": `${t("faultDo")}: ${t(fault.name)}` }, t("faultDo"));
        button.addEventListener("click", () => this.cause(fault, button));
        return h("li", { class: "fault" }, h("span", { class: "fault-icon" }, icon(fault.icon, 18)), h("div", {}, h("h3", {}, t(fault.name)), h("p", {}, t(`${fault.name}Text`))), button);
      }),
    );
    this.drawStrip();
  }

  /**
   * @param {{kind: Kind, name: string}} fault
   * @param {HTMLButtonElement} button
   */
  async cause(fault, button) {
    const { t } = this.i18n;
    button.disabled = true;
    try {
      const answer = await api.fault(fault.kind);
      if (answer.for_s > 0) this.countDown(fault.kind, answer.for_s);
      else toast(t("faultOn", { name: t(fault.name) }), "success");
    } catch (error) {
      toast(t("errFault", { why: explain(error, this.i18n) }), "error");
    } finally {
      button.disabled = false;
    }
  }

  /**
   * @param {Kind} kind
   * @param {number} seconds
   */
  countDown(kind, seconds) {
    window.clearInterval(this.timer);
    this.running = kind;
    this.left = Math.round(seconds);
    this.drawStrip();
    this.timer = window.setInterval(() => {
      this.left -= 1;
      if (this.left <= 0) window.clearInterval(this.timer);
      this.drawStrip();
    }, 1000);
  }

  drawStrip() {
    const strip = byId("fault-strip");
    strip.hidden = this.left <= 0;
    if (strip.hidden) return;
    strip.className = `strip is-${this.running}`;
    const fault = FAULTS.find((one) => one.kind === this.running);
    fill(strip, icon(fault?.icon ?? "plug", 16), h("span", {}, this.i18n.t(`left_${this.running}`, { s: this.left })));
  }
}
