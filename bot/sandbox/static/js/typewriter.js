// @ts-check
/**
 * Fills the time between two updates of a card, as Feishu's client does: an update carries the whole text so far, and what is
 * new is typed out until the next one comes (feishu.md §5.1, §5.2).
 * Text that does not continue what is shown replaces it at once. Owns its timer; `dispose` ends it.
 */

import { prefersStill } from "./dom.js";

const TICK_MS = 40;
const FIRST_SPAN_MS = 900;
const MIN_SPAN_MS = 250;
const MAX_SPAN_MS = 2200;
const FINISH_MS = 420;

export class Typewriter {
  /** @param {(text: string, done: boolean) => void} show */
  constructor(show) {
    this.show = show;
    this.target = "";
    this.shown = 0;
    this.perTick = 1;
    this.tickMs = TICK_MS;
    this.updatedAt = 0;
    this.timer = 0;
    this.atOnce = false;
  }

  /** The next text is not news (the page was redrawn): no typing. */
  showFirstAtOnce() {
    this.atOnce = true;
  }

  /**
   * @param {string} text  the whole text so far
   * @param {{streaming: boolean, config?: {print_frequency_ms?: any, print_step?: any}}} how
   */
  set(text, how) {
    const continues = text.startsWith(this.target);
    const previous = this.target.length;
    const first = this.updatedAt === 0;
    this.target = text;
    const atOnce = this.atOnce;
    this.atOnce = false;
    if (!continues || atOnce || prefersStill() || document.hidden || (first && !how.streaming)) return this.finish();
    if (how.streaming && how.config) this.followConfig(how.config, previous);
    else this.spread(how.streaming);
    this.updatedAt = performance.now();
    this.start();
  }

  /**
   * Feishu's "fast" strategy: what was not yet shown of the old text appears, then the new part is typed at the card's pace.
   * @param {{print_frequency_ms?: any, print_step?: any}} config
   * @param {number} previous  length of the text before this update
   */
  followConfig(config, previous) {
    this.shown = Math.max(this.shown, previous);
    this.tickMs = Math.max(16, setting(config.print_frequency_ms, 70));
    this.perTick = Math.max(1, setting(config.print_step, 1));
  }

  /**
   * No pace given: spread the rest over the time the last update took to come.
   * @param {boolean} streaming
   */
  spread(streaming) {
    const since = this.updatedAt ? performance.now() - this.updatedAt : FIRST_SPAN_MS;
    const span = streaming ? Math.min(MAX_SPAN_MS, Math.max(MIN_SPAN_MS, since)) : FINISH_MS;
    this.tickMs = TICK_MS;
    this.perTick = Math.max(1, Math.ceil(((this.target.length - this.shown) * TICK_MS) / span));
  }

  start() {
    window.clearTimeout(this.timer);
    if (this.shown >= this.target.length) return this.show(this.target, true);
    this.timer = window.setTimeout(() => {
      this.shown = wholeCharacter(this.target, this.shown + this.perTick);
      const done = this.shown >= this.target.length;
      this.show(this.target.slice(0, this.shown), done);
      if (!done) this.start();
    }, this.tickMs);
  }

  /** Shows everything now. */
  finish() {
    window.clearTimeout(this.timer);
    this.updatedAt = performance.now();
    this.shown = this.target.length;
    this.show(this.target, true);
  }

  dispose() {
    window.clearTimeout(this.timer);
  }
}

/**
 * @param {any} value  a number, or Feishu's {default, android, ios, pc}
 * @param {number} fallback
 * @returns {number}
 */
function setting(value, fallback) {
  const number = Number(value?.pc ?? value?.default ?? value);
  return Number.isFinite(number) && number > 0 ? number : fallback;
}

/**
 * @param {string} text
 * @param {number} end
 * @returns {number} `end`, moved so that no surrogate pair (an emoji) is cut
 */
function wholeCharacter(text, end) {
  const code = text.charCodeAt(end - 1);
  return Math.min(text.length, code >= 0xd800 && code <= 0xdbff ? end + 1 : end);
}
