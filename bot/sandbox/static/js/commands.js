// @ts-check
/** The bot's commands that the page hints at. The bot has the real table; this is only a memory aid. */

/** @type {Array<{name: string, key: string}>} */
export const COMMANDS = [
  { name: "/help", key: "cmdHelp" },
  { name: "/new", key: "cmdNew" },
  { name: "/reset", key: "cmdReset" },
  { name: "/stop", key: "cmdStop" },
  { name: "/retry", key: "cmdRetry" },
  { name: "/status", key: "cmdStatus" },
  { name: "/whoami", key: "cmdWhoami" },
];
