// @ts-check
/** The side panel "on the wire": traffic as it happens, with a filter. Owns the filter and the rows. */

import { byId, fill, h, prefersStill } from "./dom.js";
import { flame, icon } from "./icons.js";
import { StickyEnd } from "./scroll.js";
import { haystack, isProblem, traceRow } from "./wire_item.js";

/** @typedef {import("./types.js").Trace} Trace */
/** @typedef {"all"|"webhook"|"api"|"problem"} Kind */

/** @type {Array<[Kind, string]>} */
const KINDS = [["all", "all"], ["webhook", "webhooks"], ["api", "apiCalls"], ["problem", "problems"]];

export class WirePanel {
  /**
   * @param {import("./store.js").Store} store
   * @param {import("./i18n.js").I18n} i18n
   */
  constructor(store, i18n) {
    this.store = store;
    this.i18n = i18n;
    /** @type {Kind} */
    this.kind = "all";
    this.words = "";
    this.list = byId("traces");
    this.end = new StickyEnd(byId("trace-box"), this.list);
    const filter = /** @type {HTMLInputElement} */ (byId("trace-filter"));
    filter.addEventListener("input", () => {
      this.words = filter.value.trim().toLowerCase();
      this.redraw();
    });
    byId("trace-clear").addEventListener("click", () => store.clearTraces());
    this.list.addEventListener("click", () => this.end.release());
    store.on("trace", (trace) => this.take(trace));
    store.on("traces", () => this.redraw());
    i18n.onChange(() => this.redraw());
    this.drawDiagram();
    this.redraw();
  }

  /** The picture of who calls whom, with a counter on each way. */
  drawDiagram() {
    fill(
      byId("wire-diagram"),
      h("div", { class: "wire-node is-platform" }, icon("topic", 20), h("b", { "data-i18n": "platform" }), h("small", { "data-i18n": "platformSub" })),
      h("div", { class: "wire-lines" }, lane("in", "webhooks"), lane("out", "apiCalls")),
      h("div", { class: "wire-node is-hearth" }, flame(20), h("b", {}, "Hearth"), h("small", { id: "wire-model" })),
    );
    this.i18n.apply();
  }

  /** @param {Trace} trace */
  take(trace) {
    this.pulse(trace.direction === "webhook" ? "in" : "out", isProblem(trace));
    if (this.fits(trace)) this.list.append(traceRow(trace, this.i18n));
    while (this.list.childElementCount > this.store.traces.length) this.list.firstElementChild?.remove();
    this.drawCounts();
  }

  /**
   * @param {"in"|"out"} way
   * @param {boolean} bad
   */
  pulse(way, bad) {
    if (prefersStill() || document.hidden) return;
    const track = byId(`lane-${way}`);
    if (track.childElementCount > 6) return;
    const spark = h("i", { class: bad ? "spark is-bad" : "spark" });
    track.append(spark);
    spark.addEventListener("animationend", () => spark.remove());
  }

  /** @param {Trace} trace */
  fits(trace) {
    const kind = this.kind === "all" || (this.kind === "problem" ? isProblem(trace) : trace.direction === this.kind);
    return kind && (!this.words || haystack(trace).includes(this.words));
  }

  redraw() {
    fill(this.list, this.store.traces.filter((trace) => this.fits(trace)).map((trace) => traceRow(trace, this.i18n)));
    this.drawKinds();
    this.drawCounts();
    this.end.toEnd();
  }

  drawKinds() {
    fill(
      byId("trace-kinds"),
      KINDS.map(([kind, label]) =>
        h("button", { type: "button", class: "kind", "aria-pressed": String(kind === this.kind), testid: `trace-kind-${kind}`, onclick: () => this.choose(kind) },
          this.i18n.t(label), h("span", { class: "kind-count", id: `count-${kind}` }))),
    );
  }

  /** @param {Kind} kind */
  choose(kind) {
    this.kind = kind;
    this.redraw();
    /** @type {HTMLElement|null} */ (byId("trace-kinds").querySelector(`[data-testid="trace-kind-${kind}"]`))?.focus();
  }

  drawCounts() {
    const { traces } = this.store;
    const webhooks = traces.filter((trace) => trace.direction === "webhook").length;
    const counts = { all: traces.length, webhook: webhooks, api: traces.length - webhooks, problem: traces.filter(isProblem).length };
    for (const [kind, n] of Object.entries(counts)) byId(`count-${kind}`).textContent = String(n);
    byId("lane-in-count").textContent = String(counts.webhook);
    byId("lane-out-count").textContent = String(counts.api);
    byId("wire-count").textContent = traces.length ? String(traces.length) : "";
    const shown = this.list.childElementCount;
    const filtered = this.kind !== "all" || this.words;
    byId("trace-shown").textContent = filtered ? this.i18n.t("shown", { n: shown, total: traces.length }) : "";
    const empty = byId("trace-empty");
    empty.hidden = shown > 0;
    empty.textContent = this.i18n.t(traces.length ? "nothingFits" : "nothingYet");
  }
}

/**
 * @param {"in"|"out"} way
 * @param {string} label
 */
function lane(way, label) {
  return h(
    "div",
    { class: `lane is-${way}` },
    h("span", { class: "lane-label" }, h("span", { "data-i18n": label }), " ", h("b", { id: `lane-${way}-count` }, "0")),
    h("span", { class: "lane-track", id: `lane-${way}` }),
  );
}
