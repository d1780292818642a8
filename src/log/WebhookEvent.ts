import type { EventText } from './EventText'

/** Events of webhooks. `endpoint` names one by its id, `origin` is its URL without the path. */
export const webhookEvents = {
  'webhook-recovered': { level: 'info', meaning: 'An endpoint takes messages again.' },
  'webhook-failing': {
    level: 'warn',
    meaning:
      'Five attempts at an endpoint failed in a row. It gets one attempt at a time until one succeeds.',
    action:
      'Repair the receiver. Messages are tried for a day; `turnpike webhooks list` shows them.',
  },
  'webhook-disabled': {
    level: 'error',
    meaning: 'An endpoint answered 410. It gets nothing more until the next reload or start.',
    action: 'Remove it from the file, or repair it and send SIGHUP.',
  },
  'webhook-lost': {
    level: 'warn',
    meaning:
      'Messages of an endpoint were given up: after a day, or above the number that may wait.',
    action:
      'Read what happened from `turnpike sales` or `turnpike orders`, and repair the receiver.',
  },
  'webhook-fault': {
    level: 'error',
    meaning: 'The result of an attempt could not be written. The message is sent again.',
    action: 'The same as for `storage-fault`.',
  },
} as const satisfies Readonly<Record<string, EventText>>
