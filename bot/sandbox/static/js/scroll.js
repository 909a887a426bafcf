// @ts-check
/** Keeps a scrolling list at its end while the person has not scrolled away. Owns the "pinned" state of one list. */

const SLACK_PX = 60;

export class StickyEnd {
  /**
   * @param {HTMLElement} box  scrolls
   * @param {HTMLElement} content  grows inside it
   * @param {(pinned: boolean) => void} [onChange]
   */
  constructor(box, content, onChange = () => {}) {
    this.box = box;
    this.onChange = onChange;
    this.pinned = true;
    this.top = 0;
    box.addEventListener("scroll", () => this.measure(), { passive: true });
    const observer = new ResizeObserver(() => this.follow());
    observer.observe(content);
    observer.observe(box);
  }

  measure() {
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    // Content that grew under a pinned list is no reason to let go: only a movement upwards is.
    const upwards = scrollTop < this.top - 1;
    this.top = scrollTop;
    const pinned = scrollHeight - scrollTop - clientHeight < SLACK_PX || (this.pinned && !upwards);
    if (pinned === this.pinned) return;
    this.pinned = pinned;
    this.onChange(pinned);
  }

  follow() {
    if (this.pinned) this.box.scrollTop = this.box.scrollHeight;
  }

  /** The person looks at something in the list: it must not run away. */
  release() {
    this.pinned = false;
    this.onChange(false);
  }

  /** Back to the end, and stay there. */
  toEnd() {
    this.pinned = true;
    this.box.scrollTop = this.box.scrollHeight;
    this.onChange(true);
  }
}
