import type { Message } from '../../../db/webhooks'
import type { Webhook } from '../../config/Config'
import { type Html, html } from '../html'
import { badge, type Tone } from '../parts'
import { duration, figure, table, time } from './parts'
import type { AdminContext } from './sources'

/** Messages of each state that the log shows; those that wait come first. */
const shownMax = 50

const tones: Readonly<Record<Message['state'], Tone>> = {
  waiting: 'fair',
  delivered: 'good',
  failed: 'bad',
}

/** Endpoints, and the log of what was sent to them. */
export async function webhooksPage({ config, webhooks, now }: AdminContext): Promise<Html> {
  if (config.webhooks.length + config.alerts.length === 0)
    return html`<h1>Webhooks</h1><p class="empty">Nothing is sent: no endpoint is in the file. To get messages about payments, failures and budgets, add a <code>[[webhooks]]</code> block, then <a href="/admin/configuration">reload the file</a>.</p>`
  const [messages, waiting] = await Promise.all([webhooks.list(shownMax), webhooks.countWaiting()])
  const at = now()
  return html`<h1>Webhooks</h1>
${
  config.webhooks.length > 0 &&
  table('Endpoints', config.webhooks, [
    ['Endpoint', ({ url, id }) => html`<strong>${url.origin}</strong> <code>${id}</code>`],
    ['Waiting', ({ id }) => figure(waiting.get(id) ?? 0), 'number'],
    ['Takes', ({ events }) => events.join(', ')],
    ['Test', testOf],
  ])
}
<h2>Log</h2>
${table(
  { list: 'Messages' },
  messages,
  [
    ['Time', ({ createdAt }) => time(createdAt)],
    ['State', ({ state }) => badge(tones[state], state)],
    ['Event', ({ type }) => type],
    ['Answer', answerOf],
    ['Attempts', ({ attempts }) => attempts, 'number'],
    ['Next', ({ state, dueAt }) => (state === 'waiting' ? duration(dueAt - at) : '-')],
    ['About', ({ subject }) => html`<code>${subject}</code>`],
    ['Endpoint', ({ origin }) => origin],
    [
      'Message',
      ({ id }) =>
        html`<a href="/admin/actions/resend?subject=${id}">Send again<span class="hidden"> ${id}</span></a>`,
    ],
  ],
  'Nothing was sent yet. Send a test to see whether an endpoint takes messages.',
)}
<p class="quiet">Those that wait, then failed ones, then delivered ones, up to ${shownMax} of each. <code>turnpike webhooks list</code> shows them, too.</p>`
}

function testOf({ id, url }: Webhook): Html {
  return html`<a href="/admin/actions/test?subject=webhook:${id}">Send a test<span class="hidden"> to ${url.origin}</span></a>`
}

/** The last answer, or why there is none. */
function answerOf({ lastStatus, lastError }: Message): string {
  return lastStatus === null ? (lastError ?? '-') : String(lastStatus)
}
