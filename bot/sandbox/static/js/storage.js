// @ts-check
/** Small preferences in localStorage; a browser that forbids it just forgets them. */

const PREFIX = "hearth.sandbox.";

/**
 * @param {string} key
 * @returns {string|null}
 */
export function remember(key) {
  try {
    return localStorage.getItem(PREFIX + key);
  } catch {
    return null;
  }
}

/**
 * @param {string} key
 * @param {string} value
 */
export function keep(key, value) {
  try {
    localStorage.setItem(PREFIX + key, value);
  } catch {
    // Private windows may refuse; the page works without memory.
  }
}
