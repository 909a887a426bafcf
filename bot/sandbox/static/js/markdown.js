// @ts-check
/**
 * Markdown → DOM nodes, the way the played platform's card shows it. Safe by construction: the parser's tokens are turned into nodes
 * from a fixed list of tags, raw HTML stays visible text, links are http(s) or mailto, and images are never loaded.
 */

import MarkdownIt from "../vendor/markdown-it/markdown-it.esm.min.js";
import { h } from "./dom.js";
import { codeBlock } from "./code_block.js";

/** @typedef {{names: Map<string, string>, t: (key: string, values?: Record<string, string|number>) => string, glue?: boolean}} Context */

const parser = new MarkdownIt("default", { html: false, linkify: true, breaks: true });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
parser.inline.ruler.before("html_inline", "card_tag", cardTag);

const FONT_COLORS = new Set(["red", "green", "grey", "orange", "blue"]);
const CONTAINERS = new Set([
  "p", "ul", "ol", "li", "blockquote", "thead", "tbody", "tr", "th", "td", "strong", "em", "s", "h1", "h2", "h3", "h4", "h5", "h6",
]);

/**
 * The inline tags of cards: Feishu's `<at id=…></at>`, DingTalk's `<a atId=…>name</a>`, `<font color=…>…</font>`, `<br>`.
 * An escaped `&#60;at` never comes here.
 * @param {any} state
 * @param {boolean} silent
 * @returns {boolean}
 */
function cardTag(state, silent) {
  if (state.src.charCodeAt(state.pos) !== 0x3c) return false;
  const rest = state.src.slice(state.pos, state.pos + 300);
  const match =
    /^<(at)\s+(?:ids?|user_id)=["']?([^"'>\s]+)["']?\s*>[^<]*<\/at>/i.exec(rest) ??
    /^<(a)\s+atId=["']?[^"'>\s]+["']?\s*>([^<]*)<\/a>/i.exec(rest) ??
    /^<(font)\s+color=["']?([a-z]+)["']?\s*>/i.exec(rest) ??
    /^<(\/font)>()/i.exec(rest) ??
    /^<(br)\s*\/?>()/i.exec(rest);
  if (!match) return false;
  if (!silent) state.push(`card_${match[1].toLowerCase()}`, "", 0).content = match[2];
  state.pos += match[0].length;
  return true;
}

/**
 * Shows `source` in `root`, touching only the top-level blocks that changed (so that a selection survives streaming).
 * @param {Element} root
 * @param {string} source
 * @param {Context} context
 */
export function renderMarkdown(root, source, context) {
  const blocks = topLevelBlocks(parser.parse(source, {}), source.split("\n"));
  blocks.forEach((block, index) => {
    const old = root.children[index];
    if (old && sources.get(old) === block.key) return;
    const node = build(block.tokens, context);
    sources.set(node, block.key);
    if (old) old.replaceWith(node);
    else root.append(node);
  });
  while (root.children.length > blocks.length) root.lastElementChild?.remove();
}

/** @type {WeakMap<Element, string>} the source a block was built from */
const sources = new WeakMap();

/**
 * @param {any[]} tokens
 * @param {string[]} lines
 * @returns {Array<{key: string, tokens: any[]}>}
 */
function topLevelBlocks(tokens, lines) {
  /** @type {Array<{key: string, tokens: any[]}>} */
  const blocks = [];
  let depth = 0;
  let first = 0;
  tokens.forEach((token, index) => {
    depth += token.nesting;
    if (depth !== 0) return;
    const map = tokens[first].map ?? [0, 0];
    blocks.push({ key: `${tokens[first].type}\n${lines.slice(map[0], map[1]).join("\n")}`, tokens: tokens.slice(first, index + 1) });
    first = index + 1;
  });
  return blocks;
}

/**
 * @param {any[]} tokens  of one top-level block
 * @param {Context} context
 * @returns {Element}
 */
function build(tokens, context) {
  const holder = h("div");
  /** @type {Element[]} */
  const stack = [holder];
  for (const token of tokens) place(token, stack, context);
  return holder.childElementCount === 1 && holder.firstElementChild ? holder.firstElementChild : holder;
}

/**
 * @param {any} token
 * @param {Element[]} stack  the open elements, innermost last
 * @param {Context} context
 */
function place(token, stack, context) {
  const top = stack[stack.length - 1];
  if (token.type === "inline") {
    const inner = [top];
    for (const child of token.children ?? []) placeInline(child, inner, context);
  } else if (token.hidden) return;
  else if (token.nesting === 1) open(token, stack);
  else if (token.nesting === -1) stack.length > 1 && stack.pop();
  else if (token.type === "fence" || token.type === "code_block") top.append(codeBlock(token.content, token.info, context.t));
  else if (token.type === "hr") top.append(h("hr"));
  else top.append(token.content);
}

/**
 * @param {any} token
 * @param {Element[]} stack
 */
function open(token, stack) {
  const top = stack[stack.length - 1];
  if (token.tag === "table") {
    const table = h("table");
    top.append(h("div", { class: "table-scroll", tabindex: "0" }, table));
    stack.push(table);
    return;
  }
  const tag = CONTAINERS.has(token.tag) ? token.tag : "div";
  const node = h(tag, { start: tag === "ol" ? token.attrGet("start") : null, class: alignClass(token) });
  top.append(node);
  stack.push(node);
}

/**
 * @param {any} token
 * @returns {string|null} the class for a table cell's alignment
 */
function alignClass(token) {
  const match = /text-align:(left|center|right)/.exec(token.attrGet?.("style") ?? "");
  return match ? `align-${match[1]}` : null;
}

/**
 * @param {any} token
 * @param {Element[]} stack
 * @param {Context} context
 */
function placeInline(token, stack, context) {
  const top = stack[stack.length - 1];
  const single = leaf(token, context);
  if (single !== null) top.append(single);
  else if (token.type === "card_font" || token.nesting === 1) {
    const node = opening(token);
    top.append(node);
    stack.push(node);
  } else if (token.type === "card_/font" || token.nesting === -1) {
    if (stack.length > 1) stack.pop();
  } else top.append(token.content);
}

/**
 * @param {any} token
 * @param {Context} context
 * @returns {Node|string|null} what a token without children becomes
 */
function leaf(token, context) {
  switch (token.type) {
    case "softbreak":
      return context.glue ? "" : h("br");
    case "hardbreak":
    case "card_br":
      return h("br");
    case "code_inline":
      return h("code", {}, token.content);
    case "image":
      return h("span", { class: "no-image" }, context.t("image", { alt: token.content || "…" }));
    case "card_at":
      return h("span", { class: "at" }, `@${token.content === "all" ? context.t("everyone") : context.names.get(token.content) ?? token.content}`);
    case "card_a":
      return h("span", { class: "at" }, `@${token.content}`);
    default:
      return null;
  }
}

/**
 * @param {any} token
 * @returns {Element}
 */
function opening(token) {
  if (token.type === "card_font") return h("span", { class: FONT_COLORS.has(token.content) ? `font-${token.content}` : null });
  if (token.type === "link_open") return safeLink(token.attrGet("href") ?? "");
  return h(CONTAINERS.has(token.tag) ? token.tag : "span");
}

/**
 * @param {string} href
 * @returns {Element} a link, or a plain span when the address is not one that a person should be able to follow from here
 */
export function safeLink(href) {
  let url;
  try {
    url = new URL(href);
  } catch {
    return h("span");
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return h("span");
  return h("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow", title: url.href });
}
