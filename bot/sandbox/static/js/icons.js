// @ts-check
/** Line icons drawn for this page on a 24 × 24 grid, as path data; `icon(name)` makes the SVG node. */

const SVG = "http://www.w3.org/2000/svg";

/** @type {Record<string, string>} */
const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h10",
  close: "M6 6l12 12M18 6L6 18",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  at: "M16 12a4 4 0 1 1-8 0 4 4 0 0 1 8 0zm0 0v1.5a2.5 2.5 0 0 0 5 0V12a9 9 0 1 0-3.6 7.2",
  clip: "M19 11.5l-7.4 7.4a4.4 4.4 0 0 1-6.2-6.2L13 5.1a2.9 2.9 0 0 1 4.1 4.1l-7.5 7.5a1.4 1.4 0 0 1-2-2l6.8-6.8",
  slash: "M15 5L9 19",
  spark: "M12 4l1.7 4.8L18.5 10.5l-4.8 1.7L12 17l-1.7-4.8L5.5 10.5l4.8-1.7zM19 16v4M17 18h4",
  group: "M9 11a3.2 3.2 0 1 0 0-6.4A3.2 3.2 0 0 0 9 11zM3 19c.4-3.2 2.8-5 6-5s5.6 1.8 6 5M15.5 5a3 3 0 0 1 0 5.8M18 14.6c1.7.8 2.8 2.3 3 4.4",
  person: "M12 11.5a3.6 3.6 0 1 0 0-7.2 3.6 3.6 0 0 0 0 7.2zM5 20c.5-3.6 3.3-5.5 7-5.5s6.5 1.9 7 5.5",
  topic: "M4 6.5A2.5 2.5 0 0 1 6.5 4h11A2.5 2.5 0 0 1 20 6.5v7a2.5 2.5 0 0 1-2.5 2.5H11l-4.5 4v-4A2.5 2.5 0 0 1 4 13.5zM8 8.5h8M8 11.7h5",
  reply: "M9 7L4 12l5 5M4.5 12H14a6 6 0 0 1 6 6v.5",
  recall: "M5 8h9.5a5 5 0 1 1 0 10H8M5 8l3.5-3.5M5 8l3.5 3.5",
  copy: "M9 9h9.5v10.5H9zM15 9V4.5H5.5V15H9",
  check: "M5 12.5l4.5 4.5L19 7.5",
  wire: "M3 8.5h15M14.5 5L18 8.5 14.5 12M21 15.5H6M9.5 12L6 15.5 9.5 19",
  arrowIn: "M4 12h15M13.5 6.5L19 12l-5.5 5.5",
  arrowOut: "M20 12H5M10.5 6.5L5 12l5.5 5.5",
  lock: "M6.5 11h11v8.5h-11zM9 11V8a3 3 0 0 1 6 0v3",
  chevron: "M9 6l6 6-6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  search: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM15.5 15.5L20 20",
  help: "M9.2 9a2.9 2.9 0 1 1 4 2.7c-.8.4-1.2 1-1.2 1.9v.4M12 17.6v.1M21 12a9 9 0 1 1-18 0 9 9 0 0 1 18 0z",
  info: "M12 11v6M12 7.4v.1M21 12a9 9 0 1 1-18 0 9 9 0 0 1 18 0z",
  plug: "M9 3v5M15 3v5M6.5 8h11v3.5a5.5 5.5 0 0 1-11 0zM12 17v4",
  snail: "M12 7v5l3 2M21 12a9 9 0 1 1-18 0 9 9 0 0 1 18 0z",
  gauge: "M4 17a8.5 8.5 0 1 1 16 0M12 15l4-5",
  twice: "M8 8h11.5v11.5H8zM4.5 15V4.5H15",
  stop: "M7 7h10v10H7z",
  again: "M19.5 12a7.5 7.5 0 1 1-2.3-5.4M19.5 4v4.5H15",
  cpu: "M7 7h10v10H7zM10 3.5V7M14 3.5V7M10 17v3.5M14 17v3.5M3.5 10H7M3.5 14H7M17 10h3.5M17 14h3.5",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l1 12.5h8L17 7",
  globe: "M21 12a9 9 0 1 1-18 0 9 9 0 0 1 18 0zM3.5 12h17M12 3c2.5 2.5 3.7 5.5 3.7 9s-1.2 6.5-3.7 9c-2.5-2.5-3.7-5.5-3.7-9S9.5 5.5 12 3z",
};

/**
 * @param {string} name
 * @param {number} [size]  CSS pixels
 * @returns {SVGSVGElement}
 */
export function icon(name, size = 18) {
  const svg = frame(size, "icon");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[name] ?? PATHS.info);
  svg.append(path);
  return svg;
}

/**
 * The hearth: a flame with a lighter heart.
 * @param {number} [size]
 * @returns {SVGSVGElement}
 */
export function flame(size = 18) {
  const svg = frame(size, "flame");
  for (const [cls, d] of [
    ["flame-body", "M12.6 2c.5 3.8 6.4 6.3 6.4 12.3A6.9 6.9 0 0 1 12 21.5a6.9 6.9 0 0 1-7-7.1c0-2.9 1.5-4.9 3-6.5.2 2 .8 3.1 1.8 3.7C9.4 8.2 10.3 4.5 12.6 2z"],
    ["flame-heart", "M12.2 12c.3 1.7 2.6 2.7 2.6 5.1a2.8 2.8 0 0 1-5.6 0c0-1.3.6-2.2 1.3-2.9.1.7.3 1.1.7 1.3-.1-1.2.2-2.5 1-3.5z"],
  ]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", cls);
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}

/**
 * @param {number} size
 * @param {string} cls
 */
function frame(size, cls) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("width", String(size));
  svg.setAttribute("height", String(size));
  svg.setAttribute("class", cls);
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("focusable", "false");
  return svg;
}
