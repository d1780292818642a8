import type { Authorization } from '../../../db/Authorization'
import type { Story, StoryTransaction } from '../../../db/admin'
import type { Entitlement } from '../../../db/Entitlement'
import type { Order } from '../../../db/Order'
import { type Payment, schemeOf } from '../../../db/Payment'
import type { Refund } from '../../../db/Refund'
import { timeOf } from '../../../db/sales'
import type { Config } from '../../config/Config'
import { attemptsMax, isExhausted } from '../../paywall/answer/undelivered'
import { publicFacts } from '../chains'
import { type Html, html } from '../html'
import { badge, type Tone } from '../parts'
import { channelOf } from './channels'
import { type Names, readNames } from './names'
import { coin, duration, facts, gwei, table, time } from './parts'
import { refundOf } from './refunds'
import type { AdminContext } from './sources'

/** All that the ledger has of one payment; undefined when there is none of this id. */
export async function storyPage(context: AdminContext, id: string): Promise<Html | undefined> {
  const { config, ledger } = context
  const story = /^pay_[0-9a-f]{1,40}$/.test(id) ? await ledger.story(id) : undefined
  if (story === undefined) return undefined
  const names = await readNames(context)
  const now = context.now()
  const { payment, authorization, order, entitlement } = story
  const explorer = explorerOf(config, payment)
  const refund = payment && (await context.refunds.find(id))
  const channel =
    payment && isOfChannel(payment) ? await context.channels.find(payment.transaction) : undefined
  return html`<p><a href="/admin/payments">All payments</a></p>
<h1>Payment${payment && html` of ${names.amount(payment.transfer.amountAtomic, payment.transfer)}`}</h1>
<p>${payment && html`For <strong>${purchaseOf(payment)}</strong> on ${names.network(payment.transfer.network)}. `}<code class="hash">${id}</code></p>
${payment && isUndelivered(payment) && undeliveredNotice(payment, { context, refund, names, now })}
${payment && nextOf(payment, order, now)}
${payment && (await refundOf(context, payment, names))}
<h2>What happened</h2>
${steps(story, explorer, now)}
${payment && offerOf(payment, names, explorer)}
${channel && channelOf(channel, { names, at: now })}
${authorization && chargeOf(authorization, names)}
${order && payment && orderOf(order, payment, names)}
${entitlement && entitlementOf(entitlement, now)}
${
  (channel === undefined || story.transactions.length > 0) &&
  html`<h2>Transactions</h2>
${transactionsOf(story.transactions, explorer)}`
}
${payment && deliveryOf(payment, story, now)}`
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
  if (order?.state === 'held')
    return html`<p class="note"><strong>To do: decide the order.</strong> The desk holds it. <a href="/admin/orders#${order.id}">See the reason and retry it</a>.</p>`
  if (state === 'broadcast')
    return html`<p class="note"><strong>Nothing to do: wait.</strong> It has waited for a block for ${duration(now - createdAt)}. The service sends it again with a higher fee until it is included or its time ends. If it takes minutes, look at the <a href="/admin/networks">network</a>.</p>`
  if (state === 'reverted')
    return html`<p class="note"><strong>Nothing to do.</strong> The transaction failed ${duration(now - createdAt)} ago, and no money moved. The buyer can send the payment again until its time ends.</p>`
  if (isUndelivered(payment)) return html``
  if (payment.truncated)
    return html`<p class="note">The answer ended early, and cannot be fetched again. If the buyer asks, send the amount back.</p>`
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

/** Without a time it is the present state. */
type Step = readonly [at: number | undefined, tone: Tone, word: string, text: Html | string]

function steps(
  { payment, authorization, transactions }: Story,
  explorer: Explorer,
  now: number,
): Html {
  const all = [
    authorization && authorizedStep(authorization),
    payment && receivedStep(payment),
    ...transactions.map((each) => transactionStep(each, explorer)),
    ...((payment && laterSteps(payment, explorer, now)) ?? []),
  ].filter((step) => step !== undefined)
  const ordered = all.toSorted(([a = Infinity], [b = Infinity]) => a - b)
  return html`<ol class="steps">${ordered.map(
    ([at, tone, word, text]) =>
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
  return [createdAt, tone, 'authorized', text]
}

function transactionStep(transaction: StoryTransaction, explorer: Explorer): Step {
  const { hash, kind, createdAt, members } = transaction
  const shared = members > 1 ? `, shared by ${members} payments` : ''
  const text = html`Transaction ${explorer.transaction(hash)} (${kind}${shared}) was signed and sent.`
  return [createdAt, 'plain', 'sent', text]
}

/** The time in the id is that of the request. */
function receivedStep({ id, purpose, createdAt }: Payment): Step {
  const at = Math.min(createdAt, timeOf(id) || createdAt)
  const protocol = purpose.protocol === 'mpp' ? 'MPP' : purpose.protocol
  return [at, 'plain', 'received', `A request came with a signed payment (${protocol}).`]
}

function laterSteps(payment: Payment, explorer: Explorer, now: number): (Step | undefined)[] {
  const { confirmedAt, blockNumber, transaction, logIndex, state } = payment
  const text = isOfChannel(payment)
    ? html`Its channel was charged. The voucher of the channel is claimed later, with others.`
    : html`The transfer is in block ${String(blockNumber ?? '')}, transaction ${explorer.transaction(transaction)}, log ${logIndex ?? ''}.`
  const ended = payment.nonceUsed
    ? 'The chain shows that its nonce was used or cancelled by something else.'
    : 'Its time ended before it was settled.'
  const failed =
    'The transaction failed. It is sent again when a client presents the payment again.'
  const ends: Partial<Record<Payment['state'], Step>> = {
    broadcast: [undefined, 'fair', 'pending', 'The transaction was sent and is in no block yet.'],
    reverted: [undefined, 'bad', 'reverted', failed],
    expired: [undefined, 'plain', 'never paid', ended],
  }
  const isConfirmed = confirmedAt !== undefined
  return [
    isConfirmed ? [confirmedAt, 'good', 'confirmed', text] : undefined,
    ends[state],
    deliveryStep(payment, now),
  ]
}

function deliveryStep(payment: Payment, now: number): Step | undefined {
  const { delivery, deliveredAt, upstreamStatus, truncated } = payment
  const status = upstreamStatus === undefined ? '' : `; the upstream answered ${upstreamStatus}`
  if (delivery === 'delivered') {
    const cut = truncated ? ', but not to its end' : ''
    const tone = truncated ? 'fair' : 'good'
    return [deliveredAt, tone, 'delivered', `The answer was delivered${cut}${status}.`]
  }
  if (!isUndelivered(payment)) return undefined
  const isOpen = openUntil(payment, now) !== undefined
  const more = isOpen ? 'The buyer can still fetch it.' : 'It can no longer be fetched.'
  return [undefined, 'bad', 'not delivered', `${reasonOf(payment)} ${more}`]
}

function offerOf(payment: Payment, names: Names, explorer: Explorer): Html {
  const { transfer, purpose, createdAt } = payment
  const { network, asset, amountAtomic, payer, payee, method, validBefore, nonce } = transfer
  const scheme = schemeOf(payment)
  const isSigned = scheme !== 'channel'
  return html`<h2>Offer and credential</h2>
${facts([
  ['Paid for', purpose.merchant === '' ? purpose.product : `${purpose.merchant}${purpose.route}`],
  ['Resource', html`<code>${purpose.resource}</code>`],
  ['Amount', names.amount(amountAtomic, { network, asset })],
  ['Network', names.network(network)],
  ['Payer', explorer.account(payer)],
  ['Payee', explorer.account(payee)],
  ['Protocol', [purpose.protocol, scheme, ...(isSigned ? [method] : [])].join(', ')],
  ['Nonce', isSigned ? html`<code>${nonce}</code>` : undefined],
  ['Valid until', isSigned ? time(secondsOf(validBefore, createdAt)) : undefined],
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

/** What the payment gives its wallet besides the answer. */
function entitlementOf(entitlement: Entitlement, now: number): Html {
  const { kind, merchant, route, wallet, uses, usesMax, attempts, until = now } = entitlement
  const isOver = until <= now
  return html`<h2>${kind === 'pass' ? 'Pass' : 'Again without a payment'}</h2>
${facts([
  ['State', isOver ? 'over' : uses >= usesMax ? 'used up' : 'open'],
  ['Opens', `${merchant}${route}`],
  ['Wallet', html`<code class="hash">${wallet}</code>`],
  ['Used', `${uses} of ${usesMax}`],
  ['Attempts', attempts],
  ['Until', time(until)],
])}`
}

function transactionsOf(transactions: readonly StoryTransaction[], explorer: Explorer): Html {
  const tones: Readonly<Record<string, Tone>> = { failed: 'bad', mined: 'good' }
  return table(
    'Transactions',
    transactions,
    [
      ['Transaction', ({ hash }) => explorer.transaction(hash)],
      ['Kind', ({ kind, members }) => (members > 1 ? `${kind} of ${members}` : kind)],
      ['State', ({ state }) => badge(tones[state] ?? 'plain', state)],
      ['Relayer', ({ relayer }) => explorer.account(relayer)],
      ['Account nonce', ({ nonce }) => nonce, 'number'],
      ['Block', ({ blockNumber }) => blockNumber ?? '-', 'number'],
      ['Highest fee', ({ maxFeeWei }) => gwei(maxFeeWei), 'number'],
      ['Cost', ({ costWei }) => (costWei === undefined ? '-' : coin(costWei)), 'number'],
    ],
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
      ? html`of ${isOfChannel(payment) ? 'channel' : 'transaction'} <code>${payment.transaction}</code>; the buyer has it in a header of the answer`
      : 'none: the payment is not confirmed',
  ],
])}`
}

/** Whether it is a part of a voucher, which has no transaction of its own. */
function isOfChannel(payment: Payment): boolean {
  return schemeOf(payment) === 'channel'
}

/** Whether a confirmed payment at the gateway has no delivered answer. */
function isUndelivered({ state, delivery, purpose }: Payment): boolean {
  return state === 'confirmed' && purpose.product === 'gateway' && delivery !== 'delivered'
}

/**
 * Until when a buyer can fetch an answer, unix ms; `until` is undefined before a limit is set. Undefined
 * when it can no longer be fetched.
 */
function openUntil(payment: Payment, now: number): { until: number | undefined } | undefined {
  const { redeemUntil: until } = payment
  return isExhausted(payment) || (until !== undefined && until <= now) ? undefined : { until }
}

/** Why an answer is missing and what can be done, for the top of its story. */
function undeliveredNotice(
  payment: Payment,
  of: { context: AdminContext; refund: Refund | undefined; names: Names; now: number },
): Html {
  const { context, refund, names, now } = of
  const { merchant: slug } = payment.purpose
  const merchant = context.config.merchants.find((each) => each.slug === slug)
  if (refund !== undefined)
    return html`<p class="note">${reasonOf(payment)} It can no longer be fetched, because it has a <a href="#refund">refund</a>.</p>`
  const open = openUntil(payment, now)
  const isAutomatic =
    merchant?.refund === 'undelivered' && context.refunds.canRefund(payment.transfer)
  return html`<section class="card todo" aria-labelledby="todo">
<h2 id="todo">${badge('bad', 'not delivered')} ${reasonOf(payment)}</h2>
${open === undefined ? lostText(payment, names, isAutomatic) : openText(payment, open.until)}
${causeOf(payment)}
<div class="row">
${merchant !== undefined && html`<a class="button second" href="/admin/merchants#${slug}">See the state of ${merchant.title}</a>`}
${merchant !== undefined && html`<a href="/admin/actions/pause?subject=merchant:${slug}">Pause sales of ${merchant.title} until it works</a>`}
</div>
</section>`
}

/** What the ledger knows of the last attempt, as a sentence. */
function reasonOf({ delivery, attempts, upstreamStatus }: Payment): string {
  if (attempts === 0)
    return 'The upstream was not asked yet. Usually the request ended before the confirmation.'
  const tries = attempts === 1 ? 'the only attempt' : `the last of ${attempts} attempts`
  if (delivery === 'delivering')
    return `An attempt (number ${attempts}) is running, or a crash ended it.`
  if (upstreamStatus === undefined)
    return `The upstream did not answer ${tries}: it was unreachable, too slow, or broke off.`
  if (upstreamStatus < 300)
    return `The upstream answered ${tries} with ${upstreamStatus}, but broke its answer off.`
  return `The upstream answered ${tries} with ${upstreamStatus}.`
}

/** The usual cause of a status of the upstream, and what to check. */
function causeOf({ attempts, delivery, upstreamStatus: status }: Payment): Html | false {
  if (attempts === 0 || delivery === 'delivering') return false
  const cause = (text: string) => html`<p class="quiet">${text}</p>`
  if (status === undefined)
    return cause('Check that the upstream runs and that this machine reaches it.')
  if (status === 401 || status === 403)
    return cause('The upstream refuses our credentials: check the headers of the merchant.')
  if (status === 402) return cause('The upstream itself wants money: check your account there.')
  if (status === 429 || status === 425)
    return cause('The upstream limits our requests: check your quota there.')
  if (status >= 300 && status < 400)
    return cause('The upstream redirects: write its new address into the file, and reload.')
  return cause('Check the log of the upstream at the time below.')
}

function openText(payment: Payment, until: number | undefined): Html {
  const { attempts, redeemTokenHash, answered } = payment
  const left = Math.max(1, attemptsMax - attempts)
  const hasToken = redeemTokenHash !== undefined && answered
  const how = hasToken
    ? 'The buyer has a redeem token and fetches the answer without paying again'
    : 'The buyer fetches the answer by sending the same credential again'
  return html`<p><strong>To do: repair the upstream.</strong> ${how}${until !== undefined && html` until ${time(until)}`}, up to ${left} more ${left === 1 ? 'time' : 'times'}. The service does not ask the upstream by itself.</p>`
}

function lostText(payment: Payment, names: Names, isAutomatic: boolean): Html {
  const { transfer, attempts, redeemUntil } = payment
  const { network, payer, amountAtomic } = transfer
  const why =
    redeemUntil !== undefined && attempts < attemptsMax
      ? html`The time to fetch it ended at ${time(redeemUntil)}.`
      : 'All attempts to fetch it are used.'
  if (isAutomatic)
    return html`<p><strong>Nothing to do:</strong> the service sends the money back by itself soon. ${why}</p>`
  return html`<p><strong>To do: send ${names.amount(amountAtomic, transfer)} on ${names.network(network)} back</strong> to <code class="hash">${payer}</code>. ${why}</p>`
}
