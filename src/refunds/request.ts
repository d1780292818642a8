import type { Address } from 'viem'
import type { Payment } from '../../db/Payment'
import type { RefundLedger } from '../../db/Refund'
import type { NetworkConfig } from '../config/Config'
import * as AddressText from '../protocol/Address'
import * as Amount from '../protocol/Amount'
import { decimals } from './Refund'

/** What a refund is requested with, by the service and beside it. */
export type Requesting = {
  refunds: RefundLedger
  findPayment(id: string): Promise<Payment | undefined>
  /** The account of REFUND_KEY; undefined without it. */
  account: Address | undefined
  networks: readonly NetworkConfig[]
  perDayAtomic: bigint
  /** Unix ms. */
  now: number
}

/** How a request of an operator ended, as a sentence. */
type Done = { ok: boolean; text: string }

/** Longest note of an operator, in characters. */
export const noteMax = 200

/**
 * The network whose asset a payment moved, where that can be sent back by EIP-3009. The money of a channel
 * may not be there yet.
 */
export function refundable(
  networks: readonly NetworkConfig[],
  { network, asset: paid, method }: Pick<Payment['transfer'], 'network' | 'asset' | 'method'>,
): NetworkConfig | undefined {
  if (method === 'channel') return undefined
  const found = networks.find(({ id }) => id === network)
  if (found === undefined || !found.asset.transfer.includes('eip3009')) return undefined
  return AddressText.equal(found.asset.address, paid) ? found : undefined
}

/** Requests the refund of a payment for an operator. `amount`: a decimal; undefined: the whole. */
export async function requestRefund(
  { refunds, findPayment, account, networks, perDayAtomic, now }: Requesting,
  asked: { paymentId: string; amount?: string | undefined; note?: string | undefined },
): Promise<Done> {
  const { paymentId, amount, note } = asked
  const no = (text: string): Done => ({ ok: false, text })
  if (account === undefined)
    return no('REFUND_KEY is not set: give the key of the account that pays refunds, and restart.')
  if (note !== undefined && !/^[^\p{C}]{1,200}$/u.test(note))
    return no(`The note must be one line of at most ${noteMax} characters.`)
  const amountAtomic = amount === undefined ? undefined : atomicOf(amount)
  if (amountAtomic !== undefined && !(amountAtomic > 0n))
    return no(`The amount must be a decimal above 0 with at most ${decimals} places, such as 0.5.`)
  const payment = await findPayment(paymentId)
  if (payment === undefined) return no(`There is no payment ${paymentId}.`)
  const { purpose, transfer, state } = payment
  if (purpose.product === 'desk')
    return no(`${paymentId} is of a stock order: the desk refunds it (turnpike orders).`)
  if (purpose.product !== 'gateway')
    return no(`${paymentId} was settled for another server, which has its money.`)
  if (transfer.method === 'channel')
    return no(`${paymentId} is claimed by channel: charges of a channel are not sent back.`)
  if (refundable(networks, transfer) === undefined)
    return no(`The asset of ${paymentId} has no EIP-3009 or is not configured: send it by hand.`)
  const whole = Amount.toDecimal(transfer.amountAtomic, decimals)
  const perDay = Amount.toDecimal(perDayAtomic, decimals)
  const terms = { account, amountAtomic, reason: 'operator', note, perDayAtomic } as const
  switch (await refunds.request({ paymentId, ...terms, now })) {
    case 'requested':
      return { ok: true, text: `The refund of ${amount ?? whole} for ${paymentId} is requested.` }
    case 'exists':
      return no(`${paymentId} has a refund already: each payment has at most one.`)
    case 'not-confirmed':
      return no(`${paymentId} is ${state}: only a confirmed payment can be refunded.`)
    case 'too-much':
      return no(`The amount is above that of the payment, ${whole}.`)
    case 'delivered':
      return no(`${paymentId} was delivered meanwhile.`)
    case 'day-spent':
      return no(
        `refund_per_day, ${perDay}, leaves too little today: raise it, or wait for 0:00 UTC.`,
      )
  }
}

/** Lets another attempt be sent in place of one that has failed. */
export async function retryRefund(refunds: RefundLedger, paymentId: string): Promise<Done> {
  if (await refunds.retry(paymentId))
    return { ok: true, text: `Another attempt to refund ${paymentId} is requested.` }
  const { state } = (await refunds.find(paymentId)) ?? {}
  const text =
    state === undefined
      ? `${paymentId} has no refund.`
      : `The refund of ${paymentId} is ${state}: only one that has failed is sent again.`
  return { ok: false, text }
}

/** Zero for a text that is no amount. */
function atomicOf(text: string): bigint {
  try {
    return Amount.fromDecimal(text, decimals)
  } catch {
    return 0n
  }
}
