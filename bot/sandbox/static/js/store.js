// @ts-check
/**
 * The page's state, its only owner: what the server said, plus who speaks and which chat is open.
 * Views read it and listen; only the methods here change it.
 */

/**
 * @typedef {import("./types.js").State} State
 * @typedef {import("./types.js").Message} Message
 * @typedef {import("./types.js").Chat} Chat
 * @typedef {import("./types.js").User} User
 * @typedef {import("./types.js").Trace} Trace
 * @typedef {"state"|"message"|"removed"|"trace"|"traces"|"chat"|"speaker"|"line"|"unread"} Topic
 */

const MAX_TRACES = 600;

export class Store {
  constructor() {
    /** @type {State} */
    this.server = { bot: { name: "Hearth", open_id: "" }, users: [], chats: [], messages: [], notes: {} };
    /** @type {Map<string, Message>} */
    this.messages = new Map();
    /** @type {Trace[]} */
    this.traces = [];
    /** @type {Set<string>} */
    this.unread = new Set();
    this.chatId = "";
    this.speakerId = "";
    /** @type {import("./events.js").LineState} */
    this.line = "connecting";
    this.loaded = false;
    /** @type {Map<Topic, Array<(value?: any) => void>>} */
    this.listeners = new Map();
  }

  /**
   * @param {Topic} topic
   * @param {(value?: any) => void} listener
   */
  on(topic, listener) {
    this.listeners.set(topic, [...(this.listeners.get(topic) ?? []), listener]);
  }

  /**
   * @param {Topic} topic
   * @param {any} [value]
   */
  emit(topic, value) {
    for (const listener of this.listeners.get(topic) ?? []) listener(value);
  }

  /**
   * Takes a whole state (first load, and again after a lost connection).
   * @param {State} state
   */
  load(state) {
    this.server = { ...state, notes: state.notes ?? {} };
    this.messages = new Map(state.messages.map((message) => [message.id, message]));
    this.loaded = true;
    if (!this.chat(this.chatId)) this.chatId = state.chats[0]?.id ?? "";
    if (!this.user(this.speakerId)) this.speakerId = state.users[0]?.id ?? "";
    this.emit("state");
  }

  /** @param {Message} message */
  putMessage(message) {
    const isNew = !this.messages.has(message.id);
    this.messages.set(message.id, message);
    if (isNew && message.chat_id !== this.chatId) {
      this.unread.add(message.chat_id);
      this.emit("unread");
    }
    this.emit("message", { message, isNew });
  }

  /** @param {string} id */
  removeMessage(id) {
    if (this.messages.delete(id)) this.emit("removed", id);
  }

  /** @param {{message_id: string, reactions: import("./types.js").Reaction[]}} change */
  react({ message_id, reactions }) {
    const message = this.messages.get(message_id);
    if (message) this.putMessage({ ...message, reactions });
  }

  /** @param {Trace} trace */
  addTrace(trace) {
    if (this.traces.some((known) => known.id === trace.id)) return;
    this.traces.push(trace);
    if (this.traces.length > MAX_TRACES) this.traces.shift();
    this.emit("trace", trace);
  }

  clearTraces() {
    this.traces = [];
    this.emit("traces");
  }

  /** @param {string} id */
  openChat(id) {
    if (id === this.chatId || !this.chat(id)) return;
    this.chatId = id;
    this.unread.delete(id);
    const owner = this.ownerOf(this.chat(id));
    if (owner && owner.id !== this.speakerId) this.speak(owner.id);
    this.emit("chat", id);
  }

  /** @param {string} id  who speaks from now on; a direct chat of somebody else is left for one of their own */
  speak(id) {
    if (id === this.speakerId || !this.user(id)) return;
    this.speakerId = id;
    this.emit("speaker", id);
    const owner = this.ownerOf(this.chat(this.chatId));
    if (!owner || owner.id === id) return;
    const own = this.server.chats.find((chat) => this.ownerOf(chat)?.id === id) ?? this.server.chats.find((chat) => chat.kind !== "p2p");
    if (own) this.openChat(own.id);
  }

  /**
   * The person a direct chat belongs to: its only human member.
   * @param {Chat|undefined} chat
   * @returns {User|undefined}
   */
  ownerOf(chat) {
    if (chat?.kind !== "p2p") return undefined;
    return this.server.users.find((user) => chat.members?.includes(user.id));
  }

  /** @param {Chat} chat  new, or renamed */
  putChat(chat) {
    if (!chat?.id) return;
    const known = this.server.chats.findIndex((other) => other.id === chat.id);
    if (known < 0) this.server.chats.push(chat);
    else this.server.chats[known] = chat;
    this.emit("unread");
  }

  /** @param {import("./events.js").LineState} line */
  setLine(line) {
    if (line === this.line) return;
    this.line = line;
    this.emit("line", line);
  }

  /**
   * @param {string} id
   * @returns {Chat|undefined}
   */
  chat(id) {
    return this.server.chats.find((chat) => chat.id === id);
  }

  /**
   * @param {string} id
   * @returns {User|undefined}
   */
  user(id) {
    return this.server.users.find((user) => user.id === id);
  }

  /**
   * @param {string} chatId
   * @returns {Message[]} oldest first
   */
  messagesOf(chatId) {
    return [...this.messages.values()].filter((message) => message.chat_id === chatId).sort((a, b) => a.at_ms - b.at_ms);
  }

  /** @returns {User|undefined} who speaks now */
  get speaker() {
    return this.user(this.speakerId);
  }
}
