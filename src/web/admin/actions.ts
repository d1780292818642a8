import { Type } from '@sinclair/typebox'
import { type Html, html } from '../html'
import type { AdminReader } from './layout'
import { refundAction } from './refunds'
import type { Action, AdminContext } from './sources'

/** The form of `POST /admin/actions/{action}`. */
export const actionFields = Type.Object({
  csrf: Type.String(),
  subject: Type.Optional(
    Type.String({
      maxLength: 120,
      description:
        '`merchant:SLUG`, `network:ID`, `webhook:ID` or the id of an order, a message or a payment, where the action has one',
    }),
  ),
  amount: Type.Optional(Type.String({ maxLength: 40, description: 'of a refund, a decimal' })),
  note: Type.Optional(Type.String({ maxLength: 200, description: 'of a refund' })),
})

export const actionNames = [
  'pause',
  'resume',
  'retry',
  'test',
  'resend',
  'reload',
  'backup',
  'refund',
  'claim',
] as const
export type ActionName = (typeof actionNames)[number]

/** The action of a name on a subject; undefined when there is none. */
export async function actionOf(
  context: AdminContext,
  name: string,
  subject: string,
): Promise<Action | undefined> {
  const { actions, config } = context
  switch (name as ActionName) {
    case 'pause':
    case 'resume':
      return pauseOf(context, name === 'pause', subject)
    case 'retry': {
      if (!/^ord_[0-9a-f]{32}$/.test(subject)) return undefined
      return {
        title: 'Retry a held order',
        effect: html`The desk looks at the chain again and continues the order <code>${subject}</code>, or holds it again. It never swaps or refunds twice. <code>turnpike orders show ${subject}</code> says what to check first.`,
        button: 'Retry',
        subject,
        back: `/admin/orders#${subject}`,
        run: () => actions.retry(subject),
      }
    }
    case 'test': {
      const endpoint = config.webhooks.find(({ id }) => `webhook:${id}` === subject)
      if (endpoint === undefined) return undefined
      return {
        title: `Send a test to ${endpoint.url.origin}`,
        effect: html`A signed message of the type <code>webhook.test</code> is sent to this endpoint alone, whatever it takes. It is tried for a day, as all messages are.`,
        button: 'Send a test',
        subject,
        back: '/admin/webhooks',
        run: () => actions.testWebhook(endpoint.id),
      }
    }
    case 'resend': {
      if (!/^evt_[0-9a-f]{24,32}$/.test(subject)) return undefined
      return {
        title: 'Send a message again',
        effect: html`The message <code>${subject}</code> is sent again to its endpoint, with the same <code>webhook-id</code>, as by <code>turnpike webhooks resend</code>.`,
        button: 'Send again',
        subject,
        back: '/admin/webhooks',
        run: () => actions.resend(subject),
      }
    }
    case 'reload':
      return (
        actions.reload && {
          title: 'Reload the file',
          effect:
            'The file is read again, as by SIGHUP. Requests in progress end under the present one. A file with faults changes nothing, and the faults are shown.',
          button: 'Reload',
          back: '/admin/configuration',
          subject: '',
          run: actions.reload,
        }
      )
    case 'backup':
      return (
        actions.backUp && {
          title: 'Make a backup',
          effect:
            'A copy of the database is written into the folder backups of the data directory, and checked. It has no keys: back those up once, apart from it. Sales continue during it.',
          button: 'Make a backup',
          back: '/admin/configuration',
          subject: '',
          run: actions.backUp,
        }
      )
    case 'refund':
      return refundAction(context, subject)
    case 'claim': {
      const network = config.networks.find(({ id }) => `network:${id}` === subject)
      if (network?.channels === undefined) return undefined
      return {
        title: `Claim the vouchers on ${network.name}`,
        effect:
          'What is unclaimed of all channels there is claimed now, whatever the gas costs. The service does it by itself in time, so this is of use before a long stop.',
        button: 'Claim',
        subject,
        back: '/admin/channels',
        run: () => actions.claim(network.id),
      }
    }
    default:
      return undefined
  }
}

function pauseOf(
  { config: { merchants, networks }, actions }: AdminContext,
  isPause: boolean,
  subject: string,
): Action | undefined {
  const [, kind, name = ''] = /^(merchant|network):(.+)$/.exec(subject) ?? []
  const isNetwork = kind === 'network'
  const named = isNetwork
    ? networks.find(({ id }) => id === name)?.name
    : merchants.find(({ slug }) => slug === name)?.title
  if (named === undefined) return undefined
  const stops = isNetwork
    ? `${named} is left out of every price, and the facilitator, the stock desk and the sponsor take nothing new there.`
    : `Requests to ${named} are answered 503, and no price is given.`
  return {
    title: `${isPause ? 'Pause' : 'Resume'} sales: ${named}`,
    effect: isPause
      ? `${stops} What is paid is completed, and its answers can still be fetched. The pause lasts until you resume it, over a restart and a reload, too.`
      : `${named} is sold again from the next request on.`,
    button: isPause ? 'Pause' : 'Resume',
    subject,
    back: isNetwork ? '/admin/networks' : '/admin/merchants',
    run: () => actions.pause({ kind: isNetwork ? 'network' : 'merchant', name }, isPause),
  }
}

/** The page on which an action is confirmed. Only a signed-in operator has the form. */
export function confirmPage(name: string, action: Action, reader: NonNullable<AdminReader>): Html {
  const { title, effect, fields, button, subject, back } = action
  return html`<div class="gate">
<h1>${title}</h1>
<p>${effect}</p>
${
  reader === 'program'
    ? html`<p class="fault">A token reads only. Sign in with a browser to do this.</p>`
    : html`<form method="post" action="/admin/actions/${name}">
<input type="hidden" name="csrf" value="${reader.csrf}">
<input type="hidden" name="subject" value="${subject}">
${fields}
<button>${button}</button>
</form>`
}
<p><a href="${back}">Back without doing it</a></p>
</div>`
}
