import type { Story, StoryTransaction } from '../../../db/AdminLedger'
import type { Authorization } from '../../../db/Authorization'
import type { Order } from '../../../db/Order'
import type { Payment } from '../../../db/Payment'
import type { Config } from '../../config/Config'
import { publicFacts } from '../chains'
import { type Html, html } from '../html'
import { createNames, type Names } from './names'
import { badge, coin, duration, facts, gwei, number, type Tone, table, time } from './parts'
import type { Sources } from './sources'
import { isUndelivered, openUntil, reasonOf, undeliveredNotice } from './undelivered'

/** All that the ledger has of one payment; undefined when there is none of this id. */
export async function storyPage(
  config: Config,
  sources: Sources,
  id: string,
): Promise<Html | undefined> {
  const story = /^pay_[0-9a-f]{1,40}$/.test(id) ? await sources.ledger.story(id) : undefined
  if (story === undefined) return undefined
  const names = createNames(config, await sources.assets())
  const now = sources.now()
  const { payment, authorization, order } = story
  return html`<p><a href="/admin/payments">All payments</a></p>
<h1>Payment${payment !== undefined && html` of ${names.amount(payment.transfer.amountAtomic, payment.transfer)}`}</h1>
<p>${payment !== undefined && html`For <strong>${purchaseOf(payment)}</strong> on ${names.network(payment.transfer.network)}. `}<code class="hash">${id}</code></p>
${payment !== undefined && isUndelivered(payment) && undeliveredNotice(payment, { config, names, now })}
${payment !== undefined && nextOf(payment, order, now)}
<h2>What happened</h2>
${steps(story, explorerOf(config, payment), now)}
${payment !== undefined && offerOf(payment, names, explorerOf(config, payment))}
${authorization !== undefined && chargeOf(authorization, names)}
${order !== undefined && payment !== undefined && orderOf(order, payment, names)}
<h2>Transactions</h2>
${transactionsOf(story.transactions, explorerOf(config, payment))}
${payment !== undefined && deliveryOf(payment, story, now)}`
}

type Explorer = ReturnType<typeof explorerOf>

/** Shows a hash or an address whole, with a link where the network has a public explorer. */
function explorerOf({ networks }: Config, payment: Payment | undefined) {
  const network = networks.find(({ id }) => id === payment?.transfer.network)
  const { explorer: url } = network === undefined ? {} : publicFacts(network)
  const link = (path: string, text: string): Html => {
    const whole = html`<code class="hash">${text}</code>`
    const isHex = /^0x[0-9a-f]+$/i.test(text)
    return url === undefined || !isHex
      ? whole
      : html`<a href="${url}/${path}/${text}" rel="noreferrer">${whole}</a>`
  }
  return {
    transaction: (hash: string) => link('tx', hash),
    account: (address: string) => link('address', address),
  }
}

function purchaseOf({ purpose: { merchant, route, product } }: Payment): string {
  if (product === 'desk') return 'a stock order'
  return merchant === '' ? 'another server, by the facilitator' : `${merchant}${route}`
}

/** What the operator can do about a payment; undelivered ones have their own notice. */
function nextOf(payment: Payment, order: Order | undefined, now: number): Html {
  const { state, createdAt } = payment
  const note = (text: Html) => html`<p class="note">${text}</p>`
  if (order?.state === 'held')
    return note(
      html`<strong>To do: decide the order.</strong> The desk holds it. <a href="/admin/orders#${order.id}">See the reason and retry it</a>.`,
    )
  if (state === 'broadcast')
    return note(
      html`<strong>Nothing to do: wait.</strong> It has waited for a block for ${duration(now - createdAt)}. The service sends it again with a higher fee until it is included or its time ends. If it takes minutes, look at the <a href="/admin/networks">network</a>.`,
    )
  if (state === 'reverted')
    return note(
      html`<strong>Nothing to do.</strong> The transaction failed ${duration(now - createdAt)} ago, and no money moved. The buyer can send the payment again until its time ends.`,
    )
  if (isUndelivered(payment)) return html``
  if (payment.truncated)
    return note(
      html`The answer ended early, and cannot be fetched again. If the buyer asks, send the amount back by hand.`,
    )
  return html`<p>Nothing to do: ${endOf(payment, order)}</p>`
}

function endOf({ state, purpose }: Payment, order: Order | undefined): string {
  if (state === 'expired') return 'no money moved by it, and none ever will.'
  if (order !== undefined) return `its order is ${order.state}.`
  if (purpose.product === 'desk') return 'its order is not written yet.'
  return purpose.product === 'facilitator'
    ? 'the other server has its money.'
    : 'the buyer has the answer.'
}

type Step = { at: number | undefined; tone: Tone; word: string; text: Html | string }

function steps(
  { payment, authorization, transactions }: Story,
  explorer: Explorer,
  now: number,
): Html {
  const all: Step[] = [
    ...(authorization === undefined ? [] : [authorizedStep(authorization)]),
    ...(payment === undefined ? [] : [receivedStep(payment)]),
    ...transactions.map((each) => transactionStep(each, explorer)),
    ...(payment === undefined ? [] : laterSteps(payment, explorer, now)),
  ]
  const ordered = all.toSorted((a, b) => (a.at ?? Infinity) - (b.at ?? Infinity))
  return html`<ol class="steps">${ordered.map(
    ({ at, tone, word, text }) =>
      html`<li>${at === undefined ? html`<span class="quiet">now</span>` : time(at)} ${badge(tone, word)} <span>${text}</span></li>
`,
  )}</ol>`
}

function authorizedStep({ createdAt, state }: Authorization): Step {
  const texts: Readonly<Record<Authorization['state'], readonly [Tone, string]>> = {
    authorized: ['fair', 'The ceiling was signed; the charge is not known yet.'],
    metered: ['fair', 'The charge is written and must be settled.'],
    sent: ['good', 'The ceiling was signed, and its charge was sent.'],
    void: ['plain', 'The ceiling was signed, and nothing was charged.'],
    failed: ['bad', 'The charge could not be settled, and never will be.'],
  }
  const [tone, text] = texts[state]
  return { at: createdAt, tone, word: 'authorized', text }
}

function transactionStep(transaction: StoryTransaction, explorer: Explorer): Step {
  const { hash, kind, createdAt, members } = transaction
  const shared = members > 1 ? `, shared by ${members} payments` : ''
  const text = html`Transaction ${explorer.transaction(hash)} (${kind}${shared}) was signed and sent.`
  return { at: createdAt, tone: 'plain', word: 'sent', text }
}

/** The time in the id is that of the request. */
function receivedStep({ id, purpose, createdAt }: Payment): Step {
  const at = Math.min(createdAt, Number.parseInt(id.slice(4, 16), 16) || createdAt)
  const { protocol } = purpose
  const text = `A request came with a signed payment (${protocol === 'mpp' ? 'MPP' : protocol}).`
  return { at, tone: 'plain', word: 'received', text }
}

function laterSteps(payment: Payment, explorer: Explorer, now: number): Step[] {
  const { confirmedAt, deliveredAt, blockNumber, transaction, state } = payment
  const confirmed: Step = {
    at: confirmedAt,
    tone: 'good',
    word: 'confirmed',
    text: html`The transfer is in block ${String(blockNumber ?? '')}, transaction ${explorer.transaction(transaction)}, log ${payment.logIndex ?? ''}.`,
  }
  const others: Partial<Record<Payment['state'], Step>> = {
    broadcast: {
      at: undefined,
      tone: 'fair',
      word: 'pending',
      text: 'The transaction was sent and is in no block yet.',
    },
    reverted: {
      at: undefined,
      tone: 'bad',
      word: 'reverted',
      text: 'The transaction failed. It is sent again when a client presents the payment again.',
    },
    expired: {
      at: undefined,
      tone: 'plain',
      word: 'never paid',
      text: payment.nonceUsed
        ? 'The chain shows that its nonce was used or cancelled by something else.'
        : 'Its time ended before it was settled.',
    },
  }
  const end = others[state]
  return [
    ...(confirmedAt === undefined ? [] : [confirmed]),
    ...(end === undefined ? [] : [end]),
    ...deliverySteps(payment, deliveredAt, now),
  ]
}

function deliverySteps(payment: Payment, deliveredAt: number | undefined, now: number): Step[] {
  const { delivery, upstreamStatus, truncated } = payment
  const status = upstreamStatus === undefined ? '' : `; the upstream answered ${upstreamStatus}`
  if (delivery === 'delivered') {
    const cut = truncated ? ', but not to its end' : ''
    const text = `The answer was delivered${cut}${status}.`
    return [{ at: deliveredAt, tone: truncated ? 'fair' : 'good', word: 'delivered', text }]
  }
  if (!isUndelivered(payment)) return []
  const isOpen = openUntil(payment, now) !== undefined
  const more = isOpen ? 'The buyer can still fetch it.' : 'It can no longer be fetched.'
  const text = `${reasonOf(payment)} ${more}`
  return [{ at: undefined, tone: 'bad', word: 'not delivered', text }]
}

function offerOf(
  { transfer, purpose, createdAt }: Payment,
  names: Names,
  explorer: Explorer,
): Html {
  const { network, asset, amountAtomic, payer, payee, method, upto, validBefore, nonce } = transfer
  return html`<h2>Offer and credential</h2>
${facts([
  ['Paid for', purpose.merchant === '' ? purpose.product : `${purpose.merchant}${purpose.route}`],
  ['Resource', html`<code>${purpose.resource}</code>`],
  ['Amount', names.amount(amountAtomic, { network, asset })],
  ['Network', names.network(network)],
  ['Payer', explorer.account(payer)],
  ['Payee', explorer.account(payee)],
  ['Protocol', `${purpose.protocol}, ${upto === undefined ? 'exact' : 'upto'}, ${method}`],
  ['Nonce', html`<code>${nonce}</code>`],
  ['Valid until', time(secondsOf(validBefore, createdAt))],
  ['Challenge', purpose.challengeId && html`<code>${purpose.challengeId}</code>`],
  ['Idempotency key', purpose.idempotencyKey && html`<code>${purpose.idempotencyKey}</code>`],
  ['Bound to this service', purpose.bound ? 'yes' : 'no'],
])}`
}

/** A signature may be valid without an end. Then the time is that of the payment. */
function secondsOf(seconds: bigint, otherwise: number): number {
  const ms = Number(seconds) * 1000
  return ms < 8.64e15 ? ms : otherwise
}

function chargeOf({ transfer, charge, state }: Authorization, names: Names): Html {
  const units = Object.entries(charge?.units ?? {}).map(([unit, used]) => `${used} ${unit}`)
  return html`<h2>Charge by use</h2>
${facts([
  ['State', state],
  ['Ceiling', names.amount(transfer.amountAtomic, transfer)],
  ['Charge', charge === undefined ? 'not known' : names.amount(charge.amountAtomic, transfer)],
  ['Used', units.length === 0 ? undefined : units.join(', ')],
])}`
}

function orderOf(order: Order, { transfer }: Payment, names: Names): Html {
  const { id, symbol, state, totalAtomic, heldReason, refundReason } = order
  return html`<h2>Stock order</h2>
${facts([
  ['Order', html`<a href="/admin/orders#${id}"><code>${id}</code></a>`],
  ['Token', symbol],
  ['State', state],
  ['Paid', names.amount(totalAtomic, transfer)],
  ['Held because', heldReason],
  ['Refunded because', refundReason],
])}`
}

function transactionsOf(transactions: readonly StoryTransaction[], explorer: Explorer): Html {
  return table(
    'Transactions',
    [
      'Transaction',
      'Kind',
      'State',
      'Relayer',
      number('Account nonce'),
      number('Block'),
      number('Highest fee'),
      number('Cost'),
    ],
    transactions.map((each) => [
      explorer.transaction(each.hash),
      each.members > 1 ? `${each.kind} of ${each.members}` : each.kind,
      badge(
        each.state === 'failed' ? 'bad' : each.state === 'mined' ? 'good' : 'plain',
        each.state,
      ),
      explorer.account(each.relayer),
      each.nonce,
      each.blockNumber ?? '-',
      gwei(each.maxFeeWei),
      each.costWei === undefined ? '-' : coin(each.costWei),
    ]),
    'No transaction of this service contains it: another sender settled it, or nothing was sent.',
  )
}

function deliveryOf(payment: Payment, { answer }: Story, now: number): Html {
  const { purpose, delivery, attempts, upstreamStatus, redeemUntil } = payment
  if (purpose.product !== 'gateway') return html``
  return html`<h2>Delivery and receipt</h2>
${facts([
  ['Delivery', delivery],
  ['Attempts', attempts],
  ['Status of the upstream', upstreamStatus],
  ['Can be fetched until', redeemUntil === undefined ? undefined : time(redeemUntil)],
  [
    'Kept answer',
    answer === undefined || answer.expiresAt <= now
      ? undefined
      : html`status ${answer.status}, ${answer.bytes} bytes, until ${time(answer.expiresAt)}`,
  ],
  [
    'Receipt',
    payment.state === 'confirmed'
      ? html`of transaction <code>${payment.transaction}</code>; the buyer has it in a header of the answer`
      : 'none: the payment is not confirmed',
  ],
])}`
}
