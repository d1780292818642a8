import type { Order } from '../../../db/Order'
import type { Config } from '../../config/Config'
import { dayMs, dayStart } from '../../protocol/Time'
import { type Html, html } from '../html'
import { badge, type Tone } from '../parts'
import { type Names, readNames } from './names'
import { coin, facts, short, table, time } from './parts'
import type { AdminContext } from './sources'

const pageLength = 50

const tones: Readonly<Record<Order['state'], Tone>> = {
  settling: 'fair',
  settled: 'fair',
  swapping: 'fair',
  delivered: 'good',
  refunding: 'fair',
  refunded: 'plain',
  held: 'bad',
  failed: 'plain',
}

/** Orders of the stock desk: those that wait for the operator, then the newest. */
export async function ordersPage(context: AdminContext, params: URLSearchParams): Promise<Html> {
  const { config, ledger } = context
  const held = await context.heldOrders()
  if (held === undefined)
    return html`<h1>Orders</h1><p class="empty">This service sells no stock tokens. To sell them, add <code>[stock]</code> to the file and restart.</p>`
  const before = /^ord_[0-9a-f]{12,32}$/.exec(params.get('before') ?? '')?.[0]
  const orders = await ledger.orders({ before, limit: pageLength + 1 })
  const shown = orders.slice(0, pageLength)
  const names = await readNames(context)
  return html`<h1>Orders</h1>
<h2>Held orders</h2>
${held.map((order) => heldOrder(order, config, names))}
${held.length === 0 && html`<p class="empty">${badge('good', 'fine')} No order waits for you.</p>`}
<h2>${before === undefined ? 'The newest orders' : 'Older orders'}</h2>
${list(shown, config, names)}
${orders.length > pageLength && html`<div class="row"><a class="button second" href="/admin/orders?before=${shown.at(-1)?.id}">Older</a></div>`}`
}

function heldOrder(order: Order, config: Config, names: Names): Html {
  const { id, symbol, heldReason, payer, updatedAt, paymentId, retryAt } = order
  return html`<section class="card" id="${id}">
<p>${badge('bad', 'held')} <strong>${heldReason}</strong></p>
${facts([
  ['Order', html`<code>${id}</code>`],
  ['Payment', html`<a href="/admin/payments/${paymentId}"><code>${paymentId}</code></a>`],
  ['Token', symbol],
  ['Paid', paidOf(order, config, names)],
  ['Payer', html`<code>${payer}</code>`],
  ['Since', time(updatedAt)],
  ['Retry requested', retryAt === undefined ? undefined : time(retryAt)],
])}
<p><code>turnpike orders show ${id}</code> says what to check first.</p>
<p><a class="button" href="/admin/actions/retry?subject=${id}">Retry</a></p>
</section>`
}

function list(orders: readonly Order[], config: Config, names: Names): Html {
  const story = ({ paymentId }: Order, content: Html) =>
    html`<a href="/admin/payments/${paymentId}">${content}</a>`
  return table(
    { list: 'Orders' },
    orders,
    [
      ['Time', (order) => story(order, time(order.createdAt))],
      ['State', ({ state }) => badge(tones[state], state)],
      ['Token', ({ symbol }) => symbol],
      ['Paid', (order) => paidOf(order, config, names), 'number'],
      ['Reason', ({ heldReason, refundReason }) => heldReason ?? refundReason ?? '-'],
      ['Payer', ({ payer }) => short(payer)],
      ['Payment', (order) => story(order, short(order.paymentId))],
    ],
    html`There are no orders yet. The first one comes from <a href="/stocks">the page of stocks</a>.`,
  )
}

function paidOf({ network, totalAtomic }: Order, { networks }: Config, names: Names): string {
  const asset = networks.find(({ id }) => id === network)?.asset.address ?? ''
  return names.amount(totalAtomic, { network, asset })
}

const whatGrantsAre = html`<p>A grant is coin for gas (ETH) that this service gives to a buyer that has none. The buyer needs it once, to allow payments in a token; after that each payment is a signature.</p>`

/** Native coin that was given for approves of Permit2. */
export async function grantsPage({ config, ...sources }: AdminContext): Promise<Html> {
  const sponsored = config.networks.filter(({ sponsor }) => sponsor !== undefined)
  if (sponsored.length === 0)
    return html`<h1>Grants</h1><p class="empty">Nothing to do here: no network gives grants. If you want to give them, add a <code>[networks."ID".sponsor]</code> block for a network to the file and restart.</p>
${whatGrantsAre}`
  const now = sources.now()
  const today = dayStart(now)
  const parts: Html[] = []
  for (const { id, name, sponsor, gasPerDayWei } of sponsored) {
    const range = { from: now - 30 * dayMs, before: now + 1, limit: pageLength }
    const grants = await sources.ledger.grants(id, range)
    const ofToday = grants.filter(({ createdAt }) => createdAt >= today)
    const wei = ofToday.reduce((sum, { amountWei, feeWei }) => sum + amountWei + feeWei, 0n)
    const least = ofToday.length === pageLength ? 'at least ' : ''
    parts.push(html`<h2>${name}</h2>
${facts([
  ['Grants today', `${least}${ofToday.length} of ${sponsor?.grantsPerDay ?? 0}`],
  ['Given today, with gas', `${least}${coin(wei)} of ${coin(gasPerDayWei.sponsor)}`],
])}
${table(
  { list: `Grants on ${name}` },
  grants,
  [
    ['Time', ({ createdAt }) => time(createdAt)],
    ['Kind', ({ kind }) => kind],
    ['To', ({ address }) => html`<code>${address}</code>`],
    ['Given', ({ amountWei }) => coin(amountWei), 'number'],
    ['Gas', ({ feeWei }) => coin(feeWei), 'number'],
    ['Transaction', ({ transaction }) => short(transaction)],
  ],
  'Nothing was given in the last 30 days.',
)}`)
  }
  return html`<h1>Grants</h1>
${whatGrantsAre}
<p class="quiet">Below are the newest ${pageLength} of the last 30 days on each network that gives grants.</p>
${parts}`
}
