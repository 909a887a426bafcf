// @ts-check
/**
 * The nouns of the page: what the sandbox server sends (its page API) and nothing else.
 *
 * @typedef {{id: string, name: string}} User
 * @typedef {{name: string, open_id: string}} Bot
 * @typedef {{id: string, name: string, kind: "group"|"p2p"|"topic", members?: string[]}} Chat
 * @typedef {{id: string, name: string, bot: boolean}} Sender
 * @typedef {{key?: string, id?: string, name?: string}} Mention
 * @typedef {{id: string, emoji: string, by: string}} Reaction
 *
 * @typedef {object} CardElement
 * @property {string} tag  "markdown", "hr", "button", "column_set", …
 * @property {string} [element_id]
 * @property {string} [content]
 * @property {string|{content?: string}} [text]
 * @property {string} [type]
 * @property {any} [value]
 * @property {boolean} [disabled]
 * @property {boolean} [glue]  a single line feed joins two lines (DingTalk's cards); elsewhere it is a line break
 * @property {CardElement[]} [elements]  the children of a container that are no buttons
 * @property {CardElement[]} [buttons]  those that are
 *
 * @typedef {object} Card
 * @property {CardElement[]} elements
 * @property {boolean} streaming
 * @property {string} [summary]
 * @property {string} [title]
 * @property {{print_frequency_ms?: any, print_step?: any}} [streaming_config]
 *
 * @typedef {object} Message
 * @property {string} id
 * @property {string} chat_id
 * @property {Sender} sender
 * @property {number} at_ms
 * @property {"text"|"post"|"card"} kind
 * @property {string} text
 * @property {Card} [card]
 * @property {string|null} [reply_to]
 * @property {string|null} [thread_id]
 * @property {boolean} [recalled]
 * @property {Reaction[]} [reactions]
 * @property {Mention[]} [mentions]
 *
 * @typedef {object} Trace
 * @property {string} id
 * @property {number} at  milliseconds since the epoch
 * @property {"webhook"|"api"} direction
 * @property {string} method
 * @property {string} path
 * @property {number} status
 * @property {number|null} [code]
 * @property {number} [ms]
 * @property {string} [title]
 * @property {string} [detail]  pretty JSON, cut at 4 KB
 * @property {boolean} [encrypted]
 *
 * @typedef {object} Notes
 * @property {string} [model]
 * @property {string} [language]
 * @property {string|Array<string|{en?: string, zh?: string}>} [sample_questions]  a string holds one question a line
 * @property {boolean|string} [tiny_model]
 * @property {string} [real_model_hint]  a command line
 *
 * @typedef {{platform?: string, bot: Bot, users: User[], chats: Chat[], messages: Message[], notes: Notes}} State
 */
export {};
