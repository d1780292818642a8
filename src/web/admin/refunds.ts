import type { Payment } from '../../../db/Payment'
import type { Refund } from '../../../db/Refund'
import * as Amount from '../../protocol/Amount'
import * as Refunds from '../../refunds/Refund'
import { type Html, html } from '../html'
import { badge, type Tone } from '../parts'
import { type Names, readNames } from './names'
import { facts, short, table, time } from './parts'
import type { Action, AdminContext } from './sources'

const listed = 100

const tones: Readonly<Record<Refund['state'], Tone>> = {
  requested: 'fair',
  sent: 'fair',
  refunded: 'good',
  failed: 'bad',
}

/** The newest refunds, with what each waits for. */
export async function refundsPage(context: AdminContext): Promise<Html> {
  const { refunds, findPayment } = context
  const names = await readNames(context)
  const found = await refunds.list({ before: undefined, limit: listed })
  const rows = await Promise.all(
    found.map(async (refund) => ({ refund, payment: await findPayment(refund.paymentId) })),
  )
  const account = refunds.account
  return html`<p><a href="/admin/payments">All payments</a></p>
<h1>Refunds</h1>
${
  account === undefined
    ? html`<p class="note">Set <code>REFUND_KEY</code> and restart to send money back: the key of an account that holds the assets, and needs no coin for gas.</p>`
    : html`<p>They are paid by <code class="hash">${account}</code>, the account of <code>REFUND_KEY</code>. It needs the assets, and no coin for gas. Refund a payment on its own page.</p>`
}
${table(
  { list: 'Refunds' },
  rows,
  [
    [
      'Requested',
      ({ refund }) =>
        html`<a href="/admin/payments/${refund.paymentId}">${time(refund.createdAt)} <span class="wide">${short(refund.paymentId)}</span></a>`,
    ],
    ['State', ({ refund }) => stateOf(context, refund)],
    ['Amount', ({ refund, payment }) => amountOf(refund, payment, names), 'number'],
    ['Why', ({ refund: { reason, note } }) => note ?? reason],
    ['To', ({ payment }) => short(payment?.transfer.payer ?? '')],
    ['Transaction', ({ refund }) => short(refund.transaction ?? '-')],
  ],
  'Nothing was refunded yet.',
)}`
}

function stateOf({ refunds }: AdminContext, { paymentId, state }: Refund): Html {
  const wait = refunds.waitOf(paymentId)
  return html`${badge(tones[state], state)}${wait !== undefined && ` ${Refunds.waits[wait].text}`}`
}

function amountOf({ amountAtomic }: Refund, payment: Payment | undefined, names: Names): string {
  return payment === undefined
    ? Amount.toDecimal(amountAtomic, Refunds.decimals)
    : names.amount(amountAtomic, payment.transfer)
}

/** The refund of a payment on its page; the button where it can have one. */
export async function refundOf(
  context: AdminContext,
  payment: Payment,
  names: Names,
): Promise<Html> {
  const { refunds } = context
  const { id, state, purpose, transfer } = payment
  const refund = await refunds.find(id)
  if (refund === undefined) {
    const isPossible =
      state === 'confirmed' && purpose.product === 'gateway' && refunds.canRefund(transfer)
    return html`${isPossible && html`<p><a class="button second" href="/admin/actions/refund?subject=${id}">Send the money back</a></p>`}`
  }
  return html`<h2 id="refund">Refund</h2>
${facts([
  ['State', stateOf(context, refund)],
  ['Amount', amountOf(refund, payment, names)],
  ['From', html`<code class="hash">${refund.account}</code>`],
  ['To', html`<code class="hash">${transfer.payer}</code>`],
  ['Why', refund.reason === 'operator' ? 'an operator' : 'it was never delivered'],
  ['Note', refund.note],
  ['Requested', time(refund.createdAt)],
  ['Attempts', refund.attempts],
  ['Transaction', refund.transaction && html`<code class="hash">${refund.transaction}</code>`],
])}
${refund.state === 'failed' && html`<p><a class="button second" href="/admin/actions/refund?subject=${id}">Send it again</a></p>`}`
}

/** Sends the money of a payment back, or again where that failed. Undefined where it is not possible. */
export async function refundAction(
  context: AdminContext,
  subject: string,
): Promise<Action | undefined> {
  const { refunds, actions, findPayment } = context
  const payment = /^pay_[0-9a-f]{1,40}$/.test(subject) ? await findPayment(subject) : undefined
  if (payment === undefined || !refunds.canRefund(payment.transfer)) return undefined
  const { transfer } = payment
  const names = await readNames(context)
  const whole = Amount.toDecimal(transfer.amountAtomic, Refunds.decimals)
  const place = { subject, back: `/admin/payments/${subject}` }
  if ((await refunds.find(subject))?.state === 'failed')
    return {
      ...place,
      title: 'Send a refund again',
      effect:
        'Another attempt is sent. The token takes only one of all attempts, so the money cannot go out twice.',
      button: 'Send it again',
      run: () => actions.retryRefund(subject),
    }
  return {
    ...place,
    title: 'Send the money of a payment back',
    effect: html`The account of <code>REFUND_KEY</code> sends the amount on ${names.network(transfer.network)} to the payer <code class="hash">${transfer.payer}</code>, who paid ${names.amount(transfer.amountAtomic, transfer)}. This cannot be undone, and happens once for a payment. What was not delivered can no longer be fetched.`,
    fields: html`<label>Amount <input name="amount" value="${whole}" inputmode="decimal" required maxlength="40" autocomplete="off"></label>
<label>Note for yourself <input name="note" maxlength="200" autocomplete="off"></label>`,
    button: 'Send it back',
    run: ({ amount = '', note }) =>
      actions.refund({ paymentId: subject, amount, note: note || undefined }),
  }
}
