// @ts-check
/** Builds DOM nodes. No HTML string is ever parsed anywhere on this page: text stays text. */

/** @typedef {Node|string|number|null|undefined|false} Child */

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [props]  "class", "testid", "onclick" (a function), any attribute; false/null = absent
 * @param {...(Child|Child[])} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) setProp(node, key, value);
  append(node, children);
  return node;
}

/**
 * @param {Element} node
 * @param {string} key
 * @param {any} value
 */
function setProp(node, key, value) {
  if (value === undefined || value === null || value === false) return;
  if (typeof value === "function") node.addEventListener(key.slice(2), value);
  else if (key === "class") node.setAttribute("class", value);
  else if (key === "testid") node.setAttribute("data-testid", value);
  else node.setAttribute(key, value === true ? "" : String(value));
}

/**
 * @param {Node} node
 * @param {(Child|Child[])[]} children
 */
export function append(node, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/**
 * @param {Element} node
 * @param {...(Child|Child[])} children
 */
export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
}

/**
 * The element with this id; the page is broken without it, so its absence is an error.
 * @param {string} id
 * @returns {HTMLElement}
 */
export function byId(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`index.html has no element with id "${id}"`);
  return node;
}

const still = window.matchMedia("(prefers-reduced-motion: reduce)");

/** @returns {boolean} whether the person asked for less motion */
export function prefersStill() {
  return still.matches;
}

/**
 * Copies text; falls back to a hidden field where the clipboard API is not allowed (plain http on a LAN address).
 * @param {string} text
 * @returns {Promise<boolean>}
 */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = h("textarea", { class: "visually-hidden", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
