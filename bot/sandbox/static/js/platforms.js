// @ts-check
/**
 * What differs between the played platforms in the texts of the page: the name, how a message travels to the bot, and the few
 * sentences that hold for one of them only. A text in strings.js may use {platform} and {pushed}.
 */

/** @typedef {{name: string, pushed: string, texts: Record<string, string>}} Words */

/** @satisfies {Record<string, {en: Words, zh: Words}>} */
export const PLATFORMS = {
  feishu: {
    en: { name: "Feishu", pushed: "a signed, encrypted webhook", texts: {} },
    zh: { name: "飞书", pushed: "签名并加密的 webhook ", texts: {} },
  },
  dingtalk: {
    en: {
      name: "DingTalk",
      pushed: "a signed callback or a frame of the Stream gateway",
      texts: { webhooks: "Messages", wireSub: "Each callback, Stream frame and API call, as it happens" },
    },
    zh: {
      name: "钉钉",
      pushed: "签名的回调或 Stream 网关的一帧",
      texts: { webhooks: "消息", wireSub: "每一个回调、Stream 帧和 API 调用，实时可见" },
    },
  },
  wecom: {
    en: {
      name: "WeCom",
      pushed: "an encrypted callback or a frame of the long connection",
      texts: {
        webhooks: "Callbacks",
        wireSub: "Each callback, refresh poll, frame and API call, as it happens",
        faultDownText: "Nothing gets through, in either direction. The answer keeps growing out of sight and the bubble catches up when WeCom is back.",
      },
    },
    zh: {
      name: "企业微信",
      pushed: "加密的回调或长连接的一帧",
      texts: {
        webhooks: "回调",
        wireSub: "每一个回调、刷新轮询、长连接帧和 API 调用，实时可见",
        faultDownText: "两个方向都不通。回答在后台继续生成，企业微信恢复后气泡会补上。",
      },
    },
  },
};
