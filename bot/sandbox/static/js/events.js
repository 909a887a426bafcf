// @ts-check
/**
 * The live line from the sandbox (server-sent events). Owns the EventSource; reconnects for ever, with the last event id.
 * The browser resumes by itself after a dropped connection; after a refused one it gives up, so this class starts anew.
 */

const NAMES = ["message", "removed", "trace", "reaction", "chat"];
const FIRST_RETRY_MS = 800;
const LAST_RETRY_MS = 8000;

/** @typedef {"connecting"|"live"|"lost"} LineState */

export class LiveLine {
  /**
   * @param {string} url
   * @param {{onEvent: (name: string, data: any) => void, onState: (state: LineState) => void}} hooks
   */
  constructor(url, hooks) {
    this.url = url;
    this.hooks = hooks;
    this.lastId = "";
    this.wait = FIRST_RETRY_MS;
    /** @type {EventSource|null} */
    this.source = null;
    this.timer = 0;
    window.addEventListener("online", () => this.retryNow());
  }

  open() {
    const source = new EventSource(this.lastId ? `${this.url}?last_event_id=${encodeURIComponent(this.lastId)}` : this.url);
    this.source = source;
    source.addEventListener("open", () => {
      this.wait = FIRST_RETRY_MS;
      this.hooks.onState("live");
    });
    source.addEventListener("error", () => this.lost(source));
    for (const name of NAMES) source.addEventListener(name, (event) => this.take(name, /** @type {MessageEvent} */ (event)));
  }

  /** Tries at once instead of waiting for the timer. */
  retryNow() {
    if (this.source?.readyState === EventSource.OPEN) return;
    window.clearTimeout(this.timer);
    this.source?.close();
    this.open();
  }

  /** @param {EventSource} source */
  lost(source) {
    if (source !== this.source) return;
    this.hooks.onState("lost");
    if (source.readyState !== EventSource.CLOSED) return;
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(this.wait * 1.7, LAST_RETRY_MS);
  }

  /**
   * @param {string} name
   * @param {MessageEvent} event
   */
  take(name, event) {
    if (event.lastEventId) this.lastId = event.lastEventId;
    let data;
    try {
      data = JSON.parse(event.data);
    } catch {
      return;
    }
    this.hooks.onEvent(name, data);
  }
}
