// @ts-check
/** An error as a sentence for the person in front of the page. */

/**
 * @param {unknown} error
 * @param {import("./i18n.js").I18n} i18n
 * @returns {string}
 */
export function explain(error, i18n) {
  const text = error instanceof Error ? error.message : String(error);
  return text === "offline" ? i18n.t("errOffline") : text;
}
