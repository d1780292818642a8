import type { Address, Hex } from 'viem'
import type { Channel } from '../../../db/Channel'
import type { Payment, Protocol } from '../../../db/Payment'
import * as Crypto from '../../protocol/Crypto'
import type { Offer } from '../../protocol/Offer'
import type { ProblemError } from '../../protocol/Problem'
import * as Receipt from '../../protocol/Receipt'
import * as X402 from '../../protocol/X402'
import type { Refunded } from '../../settlement/channels/refund'
import type { PaidDeposit, Settled } from '../../settlement/channels/state'
import * as ChannelState from '../ChannelState'

/**
 * Longer responses omit the copy under the version 1 name, so that the head stays below the 4 KB
 * that proxies accept by default.
 */
const legacyMaxBytes = 1_300

/** With a longer query a receipt would leave no room for that copy. */
const withQueryMaxLength = 200

/** The purchase that a receipt names. */
type Bought = {
  /** Query of the request, '' or with its `?`, where it is known. The hash of the request has it, too. */
  search?: string | undefined
  order?: string | undefined
}

/** What is paid for. Its transaction is '' where it has none yet. */
type Paid = Pick<Payment, 'id' | 'transfer' | 'purpose'> & { transaction: Hex | '' }

/** An answer with a receipt. `settled`: by a channel. */
type Receipted = Bought & {
  protocol: Protocol
  usage?: Usage | undefined
  settled?: Settled | undefined
}

/** What an answer has used, and the ceiling that its buyer signed. */
export type Usage = { ceilingAtomic: bigint; units: Readonly<Record<string, number>> }

function extensionOf(usage: Usage | undefined) {
  if (usage === undefined) return {}
  return { usage: { info: { ceiling: String(usage.ceilingAtomic), units: usage.units } } }
}

/** Most age (ms) of a receipt that was signed in advance, because it contains its own time. */
const aheadMs = 2_000
/** Most receipts that are signed in advance; the oldest ones are dropped first. */
const aheadMax = 1_000

type Ahead = { receipt: Receipt.Signed; amountAtomic: bigint; signedAt: number }

export type Receipts = ReturnType<typeof createReceipts>

/** Signs the receipts of all products. `now` is unix ms. */
export function createReceipts(key: Uint8Array, now: () => number) {
  // It takes a while to compute.
  const address = Crypto.addressOf(key)
  /** Those that were signed in advance, while their payments are being confirmed or charged. */
  const ahead = new Map<string, Ahead>()

  /** The signed receipt of a payment. */
  function sign(payment: Paid, { search = '', order }: Bought = {}): Receipt.Signed {
    const { transaction, transfer, purpose } = payment
    const whole = purpose.resource + search
    const url = whole.length > withQueryMaxLength ? purpose.resource : whole
    const amount = String(transfer.amountAtomic)
    const fields = {
      network: transfer.network,
      resourceUrl: Receipt.urlOf(url, { request: purpose.fingerprint, amount, order }),
      payer: transfer.payer,
      issuedAt: Math.floor(now() / 1000),
      transaction,
    }
    return Receipt.sign(fields, key)
  }

  /** The one that was signed in advance, where that is right. A transaction may have been replaced since. */
  function receiptOf(payment: Paid, bought: Bought): Receipt.Signed {
    const { id, transaction } = payment
    const early = ahead.get(id)
    ahead.delete(id)
    const isGood =
      early?.receipt.payload.transaction === transaction &&
      early.amountAtomic === payment.transfer.amountAtomic &&
      Math.abs(now() - early.signedAt) < aheadMs
    return isGood ? early.receipt : sign(payment, bought)
  }

  return {
    /** Of the signer. */
    address,
    sign,
    /** Signs the receipt of a payment that is being confirmed or charged. `search`: the query of its request. */
    expecting: (search: string) => (payment: Paid) => {
      const [oldest] = ahead.keys()
      if (oldest !== undefined && ahead.size >= aheadMax) ahead.delete(oldest)
      const receipt = sign(payment, { search })
      const { amountAtomic } = payment.transfer
      ahead.set(payment.id, { receipt, amountAtomic, signedAt: now() })
    },
    /** Receipt headers of an answer that is sent now, in the protocol of its payment. */
    headersOf(payment: Payment, { protocol, usage, settled, ...bought }: Receipted): Headings {
      const { transfer, purpose } = payment
      const { network, payer } = transfer
      const paid = { success: true, network, payer, amount: String(transfer.amountAtomic) }
      const terms = settled
        ? settledTerms(settled)
        : { ...paid, transaction: transactionOf(payment) }
      const receipt = receiptOf({ ...payment, transaction: terms.transaction }, bought)
      if (protocol === 'mpp') {
        const { challengeId } = purpose
        return { 'payment-receipt': Receipt.mpp(receipt, { issuer: address, challengeId }) }
      }
      const response = Receipt.x402({ ...terms, receipt, extensions: extensionOf(usage) })
      return settled || response.length > legacyMaxBytes
        ? { 'payment-response': response }
        : { 'payment-response': response, 'x-payment-response': response }
    },
  }
}

/** The transaction of a payment. One by a channel has none of its own. */
export function transactionOf({
  transaction,
  transfer,
}: Pick<Paid, 'transaction' | 'transfer'>): Hex | '' {
  return transfer.method === 'channel' ? '' : transaction
}

/** The members of `PAYMENT-RESPONSE` for a request by a channel. `moved`: its deposit, or what it refunds. */
function channelTerms(channel: Channel, moved: PaidDeposit | undefined, charge?: object) {
  return {
    success: true,
    transaction: moved?.transaction ?? ('' as const),
    network: channel.network,
    payer: channel.config.payer,
    amount: moved === undefined ? '' : String(moved.amountAtomic),
    extra: { ...charge, channelState: ChannelState.of(channel) },
  }
}

function settledTerms({ payment, channel, deposit }: Settled) {
  const chargedAmount = String(payment?.transfer.amountAtomic ?? 0n)
  return channelTerms(channel, deposit, { chargedAmount })
}

/** `PAYMENT-RESPONSE` of an answer by a channel that costs nothing. */
export function freeByChannel(settled: Settled): string {
  return Receipt.x402(settledTerms(settled))
}

/** The headers of the answer to a refund of a channel. */
export function refundHeaders({ channel, ...moved }: Refunded): Headings {
  return { 'payment-response': Receipt.x402(channelTerms(channel, moved)) }
}

type Headings = Readonly<Record<string, string>>

/** Payer and network of a failed payment, as far as they are known. */
type Failing = { network: string; payer?: Address | undefined }

/**
 * `PAYMENT-RESPONSE` of an x402 request that failed. Its network must be a CAIP-2 id: without one
 * there is no header. A 402 omits the copy under the version 1 name, because its head must stay
 * short.
 */
export function failureHeaders(
  problem: Pick<ProblemError, 'code' | 'members'> & { status?: number },
  failing: Failing | undefined,
): Headings {
  if (failing === undefined) return {}
  const { reason, transaction } = problem.members
  const response = Receipt.x402({
    success: false,
    errorReason: typeof reason === 'string' ? reason : problem.code,
    transaction: isHash(transaction) ? transaction : '',
    network: failing.network,
    payer: failing.payer,
  })
  if (problem.status === 402) return { 'payment-response': response }
  return { 'payment-response': response, 'x-payment-response': response }
}

/**
 * Network of an x402 payment that could not be read, for `failureHeaders`: the one it accepted,
 * else that of the first offer.
 */
export function failingOf(
  credential: string | undefined,
  offers: readonly Pick<Offer, 'network'>[],
): Failing | undefined {
  const named = credential === undefined ? undefined : X402.acceptedNetwork(credential)
  const network = named ?? offers[0]?.network.id
  return network === undefined ? undefined : { network }
}

function isHash(value: unknown): value is `0x${string}` {
  return typeof value === 'string' && /^0x[0-9a-f]{64}$/.test(value)
}
