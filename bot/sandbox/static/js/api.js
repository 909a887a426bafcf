// @ts-check
/** The verbs of the sandbox's page API. Every failure becomes one ApiError with a sentence a person can read. */

/** @typedef {import("./types.js").State} State */

export class ApiError extends Error {}

/**
 * @param {string} path
 * @param {RequestInit} [init]
 * @returns {Promise<any>}
 */
async function request(path, init) {
  let response;
  try {
    response = await fetch(path, { ...init, headers: { Accept: "application/json", "Content-Type": "application/json" } });
  } catch {
    throw new ApiError("offline");
  }
  const text = await response.text();
  const body = parse(text);
  if (!response.ok) throw new ApiError(body?.error?.message ?? body?.error ?? body?.msg ?? `HTTP ${response.status}`);
  return body;
}

/**
 * @param {string} text
 * @returns {any}
 */
function parse(text) {
  try {
    return text ? JSON.parse(text) : {};
  } catch {
    return {};
  }
}

/**
 * @param {string} verb
 * @param {object} body
 */
const post = (verb, body) => request(`/sandbox/${verb}`, { method: "POST", body: JSON.stringify(body) });

export const api = {
  /** @returns {Promise<State>} */
  state: () => request("/sandbox/state"),
  /** @param {{chat_id: string, user_id: string, text: string, mention_bot: boolean, reply_to?: string}} body */
  say: (body) => post("say", body),
  /** @param {{chat_id: string, user_id: string, name: string, data: string, is_image: boolean}} body  data is base64 */
  sendFile: (body) => post("send_file", body),
  /** @param {string} messageId */
  recall: (messageId) => post("recall", { message_id: messageId }),
  /** @param {{message_id: string, value: any, user_id: string}} body */
  press: (body) => post("press", body),
  /** @param {"down"|"slow"|"rate_limit"|"duplicate"} kind */
  fault: (kind) => post("fault", { kind }),
  /** @param {string} name */
  newChat: (name) => post("new_chat", { name }),
};
