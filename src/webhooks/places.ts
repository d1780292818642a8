import type { Alert } from '../config/Config'
import { urlOfHost } from '../config/values'
import { type Naming, textOf } from './alert-text'
import type { Post, PostOptions } from './post'
import type { Target } from './retry-or-disable'

export type PlaceOptions = PostOptions & {
  /** Where Telegram is; for tests. */
  telegramUrl?: string | undefined
}

export type Place = Target & Pick<Alert, 'about'>

/** Longest text of a message: Discord takes 2,000 characters. */
const textMax = 1_900

/** A place of alerts as the sender of messages sees it. */
export function placeOf(
  alert: Alert,
  naming: Naming,
  options: PlaceOptions & { post: Post },
): Place {
  const { kind, id, about, allowPrivate } = alert
  const url = urlOf(alert, options)
  return {
    ...{ id, about, origin: kind === 'mail' ? `smtp://${url.host}` : url.origin },
    // Alerts have rules of their own (alert-watch.ts), so no commit writes any.
    types: [],
    async send({ body }, signal) {
      const { title, text: whole } = textOf(body, naming, escapes[kind])
      const text = whole.slice(0, textMax)
      if (kind !== 'mail') {
        const message = { headers: {}, body: JSON.stringify(bodyOf(alert, text)) }
        return options.post({ url, allowPrivate }, message, signal)
      }
      // Loaded only where mail is configured.
      const { sendMail } = await import('./mail')
      return sendMail(alert, { title, text }, options, signal)
    },
  }
}

function urlOf(alert: Alert, { telegramUrl = 'https://api.telegram.org' }: PlaceOptions): URL {
  if (alert.kind === 'telegram') return new URL(`${telegramUrl}/bot${alert.token}/sendMessage`)
  if (alert.kind !== 'mail') return alert.url
  const url = urlOfHost('smtp', alert.host) ?? new URL('smtp://unknown')
  if (alert.port !== undefined) url.port = String(alert.port)
  return url
}

function bodyOf(alert: Alert, text: string): object {
  switch (alert.kind) {
    case 'slack':
      // Without its format, and without previews of links.
      return { text, mrkdwn: false, unfurl_links: false }
    case 'discord':
      // No name in the text notifies people. 4: without previews of links.
      return { content: text, allowed_mentions: { parse: [] }, flags: 4 }
    case 'telegram':
      // Without parse_mode the text is plain.
      return { chat_id: alert.chat, text, link_preview_options: { is_disabled: true } }
    case 'mail':
      return {}
  }
}

/** A zero-width space after `@` keeps a text of a stranger from calling people. */
const uncalled = (text: string) => text.replaceAll('@', '@\u200b')

/** How each place shows a text of others as it is. */
const escapes: Readonly<Record<Alert['kind'], (text: string) => string>> = {
  // https://docs.slack.dev/messaging/formatting-message-text#escaping
  slack: (text) =>
    uncalled(text).replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;'),
  discord: (text) => uncalled(text).replace(/[\\*_~`|<>#[\]()-]/g, '\\$&'),
  telegram: uncalled,
  mail: (text) => text,
}
